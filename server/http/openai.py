"""OpenAI's chat completion as bytes: the whole answer, chunks, log-probabilities. Knows no requests."""

import time
from typing import Any

import msgspec

from model.engine.messages import Token
from server.http.responses import Collected, Whole, data
from server.requests.answer import Accepted, Delta
from tokenization.text.tokenizer import Codec

encode = msgspec.json.encode


def usage(accepted: Accepted, n_tokens: int) -> dict[str, Any]:
    """Token counts. The stop token is one of the completion's."""
    details = {"image_tokens": accepted.media_tokens - accepted.video_tokens - accepted.audio_tokens}
    if accepted.video_tokens:
        details["video_tokens"] = accepted.video_tokens
    if accepted.audio_tokens:
        details["audio_tokens"] = accepted.audio_tokens
    return {
        "prompt_tokens": accepted.prompt_tokens,
        "completion_tokens": n_tokens,
        "total_tokens": accepted.prompt_tokens + n_tokens,
        "prompt_tokens_details": details,
    }


def logprob_entries(tokens: "tuple[Token, ...] | list[Token]", codec: Codec) -> list[dict[str, Any]]:
    """One entry for each sampled token. `token` is readable, `bytes` exact: [] for an id without a vocabulary entry."""
    return [
        {**_spelled(token.id, token.logprob, codec), "top_logprobs": [_spelled(i, p, codec) for i, p in token.top]}
        for token in tokens
    ]


def _spelled(token_id: int, logprob: float | None, codec: Codec) -> dict[str, Any]:
    spelling = codec.token_bytes(token_id)
    return {"token": spelling.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(spelling)}


class CompletionForm:
    """POST /v1/chat/completions. A chunk is a prepared prefix, one encoded string, a prepared suffix."""

    def __init__(
        self, answer_id: str, model: str, codec: Codec, *, logprobs: bool, include_usage: bool, n: int = 1
    ) -> None:
        self._codec = codec
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._head = {"id": answer_id, "created": int(time.time()), "model": model}
        head = b"data: " + encode({**self._head, "object": "chat.completion.chunk"})[:-1]
        self._prefix = head + b',"choices":[{"index":'
        self._n = n
        self._suffix = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._plain_end = b'},"logprobs":null,"finish_reason":null}]' + self._suffix

    def whole(self, answer: Collected) -> dict[str, Any]:
        choices = [self._choice(index, whole) for index, whole in enumerate(answer.answers)]
        counts = usage(answer.accepted, answer.n_tokens)
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": counts}

    def _choice(self, index: int, whole: Whole) -> dict[str, Any]:
        content = logprob_entries(whole.tokens, self._codec) if self._logprobs else None
        return {
            "index": index,
            "message": {"role": "assistant", "content": whole.text, "refusal": None},
            "logprobs": None if content is None else {"content": content, "refusal": None},
            "finish_reason": whole.finish,
        }

    def opening(self) -> bytes:
        role = b'{"role":"assistant","content":""'
        return b"".join(self._start(index) + role + self._plain_end for index in range(self._n))

    def event(self, delta: Delta) -> bytes:
        prefix = self._start(delta.index)
        if not self._logprobs and delta.finish is None:
            return prefix + b'{"content":' + encode(delta.text) + self._plain_end if delta.text else b""
        content = logprob_entries(delta.tokens, self._codec) if self._logprobs else None
        logprobs = encode(None if content is None else {"content": content, "refusal": None})
        end = b',"logprobs":' + logprobs + b',"finish_reason":' + encode(delta.finish) + b"}]" + self._suffix
        return prefix + encode({"content": delta.text} if delta.text else {}) + end

    def _start(self, index: int) -> bytes:
        return self._prefix + b'%d,"delta":' % index

    def closing(self, accepted: Accepted, n_tokens: int) -> bytes:
        if not self._include_usage:
            return b""
        counts = usage(accepted, n_tokens)
        return data({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": counts})
