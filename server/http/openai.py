"""POST /v1/chat/completions: the body of a request, and its answer as JSON or as chunks."""

import time
from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from server.http.answer_fields import logprob_entries, usage
from server.http.bodies import parsed, validated
from server.http.responses import data
from server.http.vllm_fields import refuse_unsupported
from server.requests.answer import Delta
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from server.requests.sampling import INT32_MAX, SamplingRequest
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.rendering import with_rendering
from tokenization.messages import Prepared
from tokenization.text.tokenizer import Tokenizer

encode = msgspec.json.encode


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class CompletionBody(SamplingRequest):
    """What is honoured of OpenAI's chat completion request, but for the prompt's form. Others are ignored."""

    model_config = ConfigDict(extra="ignore")

    messages: list[Any]
    model: str | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    @property
    def longest(self) -> int | None:
        """`max_completion_tokens` is the newer name and wins."""
        return self.max_completion_tokens or self.max_tokens


def read_openai(raw: bytes, request_id: str) -> ChatRequest:
    """The body of POST /v1/chat/completions. Raises Refusal and ChatError."""
    found = parsed(raw)
    if not isinstance(found, dict):
        raise invalid_request("the body must be a JSON object", code="invalid_json")
    refuse_unsupported(found)
    body = validated(lambda: CompletionBody.model_validate(found))
    return ChatRequest(
        id=request_id,
        chat=with_rendering(chat_from_openai(body.messages), found),
        chat_param="messages",
        model=body.model,
        sampling=body.alone(),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


class CompletionSerializer:
    """POST /v1/chat/completions. A chunk is a prepared prefix, one encoded string, a prepared suffix."""

    def __init__(
        self,
        answer_id: str,
        model: str,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        include_usage: bool,
        n: int = 1,
        fingerprint: str | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._include_usage = include_usage
        self._head = {"id": answer_id, "created": int(time.time()), "model": model, "system_fingerprint": fingerprint}
        head = b"data: " + encode({**self._head, "object": "chat.completion.chunk"})[:-1]
        self._prefix = head + b',"choices":[{"index":'
        self._n = n
        self._suffix = b',"usage":null}\n\n' if include_usage else b"}\n\n"
        self._plain_end = b'},"logprobs":null,"finish_reason":null}]' + self._suffix

    def whole(self, prepared: Prepared, answers: Sequence[Delta]) -> dict[str, Any]:
        choices = [self._choice(index, whole) for index, whole in enumerate(answers)]
        counts = usage(prepared, sum(len(answer.tokens) for answer in answers))
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": counts}

    def _choice(self, index: int, whole: Delta) -> dict[str, Any]:
        content = logprob_entries(whole.tokens, self._tokenizer) if self._logprobs else None
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
        content = logprob_entries(delta.tokens, self._tokenizer) if self._logprobs else None
        logprobs = encode(None if content is None else {"content": content, "refusal": None})
        end = b',"logprobs":' + logprobs + b',"finish_reason":' + encode(delta.finish) + b"}]" + self._suffix
        return prefix + encode({"content": delta.text} if delta.text else {}) + end

    def _start(self, index: int) -> bytes:
        return self._prefix + b'%d,"delta":' % index

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        if not self._include_usage:
            return b""
        counts = usage(prepared, n_tokens)
        return data({**self._head, "object": "chat.completion.chunk", "choices": [], "usage": counts})
