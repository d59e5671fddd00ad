"""POST /v1/chat/completions: the body of a request, and its answer as JSON or as chunks."""

import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from server.http.long_texts import Raw
from server.http.reading import body_object
from server.http.responses import LazyList, data
from server.http.routes.answer_fields import call_json, logprob_entries, prompt_ids, thought_tokens, usage
from server.http.routes.structured import FORMS, read_grammar
from server.http.routes.vllm_fields import check_metadata, refuse_unsupported, tell_misspelt
from server.http.validation import BodyFields, validated
from server.requests.answer import Delta
from server.requests.model_card import ModelCard
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from server.requests.sampling import INT32_MAX, SamplingRequest
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.parts import Chat, Text
from tokenization.chat.rendering import with_rendering
from tokenization.messages import Prepared

encode = msgspec.json.encode
CHUNK = "chat.completion.chunk"


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True)

    include_usage: bool | None = Field(
        None, description="A last chunk has empty `choices` and `usage`; in all others `usage` is null."
    )
    continuous_usage_stats: bool | None = Field(
        None, description="Beside `include_usage`: every chunk has the `usage` up to there, with the completion tokens "
        "of its own choice, and of several prompts the tokens of that choice's own.",
    )  # fmt: skip

    @property
    def usage_so_far(self) -> bool:
        """Whether each chunk has the usage up to there."""
        return bool(self.include_usage and self.continuous_usage_stats)


class CompletionBody(BodyFields):
    """What is honoured of OpenAI's chat completion request."""

    messages: list[Any]
    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None, description="The newer name of `max_tokens`; it wins."
    )
    stream: bool | None = Field(None, description="The answer is server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="Needs `stream`.")
    include_reasoning: bool | None = Field(
        None, description="If false, the thoughts of a model that thinks aloud are left out of its answers; they count."
    )
    echo: bool | None = Field(None, description="A last message that is continued stands in front of the answer.")
    return_token_ids: bool | None = Field(None, description="The ids of prompt and answers stand beside the texts.")
    return_tokens_as_token_ids: bool | None = Field(
        None, description="A `token` in `logprobs` is written `token_id:` and its id."
    )


def read_openai(raw: Raw, request_id: str) -> ChatRequest:
    """The body of POST /v1/chat/completions. Raises Refusal and ChatError."""
    found = body_object(raw)
    refuse_unsupported(found)
    check_metadata(found)
    tell_misspelt(found, request_id)
    body = validated(CompletionBody, found)
    longest = body.max_completion_tokens or body.max_tokens  # the newer name wins
    sampling = validated(SamplingRequest, {**found, "max_tokens": longest})
    options = read_options(found, body.stream_options)
    chat, offer = with_tools(with_rendering(chat_from_openai(body.messages), found), found)
    return ChatRequest(
        id=request_id,
        chat=chat,
        chat_param="messages",
        model=body.model,
        sampling=sampling,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        usage_so_far=options.usage_so_far,
        token_ids=bool(body.return_token_ids),
        tokens_as_ids=bool(body.return_tokens_as_token_ids),
        cache_salt=body.cache_salt or "",
        grammar=read_grammar(found) if found.keys() & FORMS else None,
        tools=offer,
        shows_thoughts=body.include_reasoning is not False,
        lead=_last_words(chat) if body.echo else "",
        renamed=(("max_tokens", "max_completion_tokens"),) if body.max_completion_tokens else (),
    )


def _last_words(chat: Chat) -> str:
    """Of the last message where it is the assistant's; the texts of its parts are lines, as in vLLM."""
    last = chat.turns[-1]
    return "\n".join(part.text for part in last.parts if isinstance(part, Text)) if last.role == "assistant" else ""


def read_options(body: Mapping[str, Any], options: StreamOptions | None) -> StreamOptions:
    """What a body, of which these are the options, wants of its stream. Raises Refusal where there is none."""
    if body.get("stream_options") and not body.get("stream"):
        raise invalid_request("stream_options: they need stream: true", "stream_options")
    return options or StreamOptions()


class CompletionSerializer:
    """POST /v1/chat/completions. A chunk of text alone is a prepared prefix, one encoded string, a prepared suffix.

    An answer's role is a chunk of its own. It leaves with the first delta: load testers take its time for that of the
    first token.
    """

    def __init__(self, request: ChatRequest, card: ModelCard, *, fingerprint: str) -> None:
        self._asked = request
        self._card = card
        self._head = {
            "id": f"chatcmpl-{request.id}", "created": int(time.time()), "model": card.name,
            "system_fingerprint": fingerprint,
        }  # fmt: skip
        self._every_token = request.sampling.logprobs or request.token_ids  # is shown, also without a text
        self._text_alone = not (self._every_token or request.usage_so_far)
        self._prefix = b"data: " + encode({**self._head, "object": CHUNK})[:-1] + b',"choices":[{"index":'
        usage_to_come = b',"usage":null' if request.include_usage else b""
        self._suffix = b'},"logprobs":null,"finish_reason":null}]' + usage_to_come + b"}\n\n"
        self._n_tokens: dict[int, int] = {}  # by answer: how many were written
        self._n_reasoning: dict[int, int] = {}  # by answer that began in a thought: of these, its own

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        choices = LazyList(lambda: (self._choice(index, whole) for index, whole in enumerate(answers)))
        counts = usage(
            prepared,
            n_tokens,
            self._asked.context,
            n_reasoning=thought_tokens(answers) if answers[0].n_thought else None,
        )
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": counts} | self._ids_of(prepared)

    def _choice(self, index: int, whole: Delta) -> dict[str, Any]:
        text = self._asked.lead + whole.text
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if whole.n_thought:
            message["content"] = text or None
            message |= {} if whole.reasoning is None else {"reasoning": whole.reasoning}
        if whole.calls:
            message |= {"content": text or None, "tool_calls": [call_json(call) for call in whole.calls]}
        return {"index": index, "message": message, **self._beside(whole)}

    def event(self, prepared: Prepared, delta: Delta) -> bytes:
        index = delta.index
        opening = b"" if index in self._n_tokens else self._opening(prepared, index)
        self._n_tokens[index] += len(delta.tokens)
        if delta.n_thought:
            self._n_reasoning[index] = self._n_reasoning.get(index, 0) + delta.n_reasoning
        if not (delta.text or delta.calls or delta.reasoning) and delta.finish is None and not self._every_token:
            return opening
        if self._text_alone and delta.finish is None and not delta.calls and not (delta.text and delta.reasoning):
            key, text = (b"reasoning", delta.reasoning) if delta.reasoning else (b"content", delta.text)
            return opening + self._prefix + b'%d,"delta":{"%b":' % (index, key) + encode(text) + self._suffix
        added: dict[str, Any] = {"reasoning": delta.reasoning} if delta.reasoning else {}
        if delta.text:
            added["content"] = delta.text
        if delta.calls:
            added["tool_calls"] = [{"index": call.index, **call_json(call)} for call in delta.calls]
        return opening + self._chunk(prepared, {"index": index, "delta": added, **self._beside(delta)})

    def _opening(self, prepared: Prepared, index: int) -> bytes:
        """The role, and what stands in front; in the first chunk also the prompt's ids, where they are wanted."""
        ids = {} if self._n_tokens else self._ids_of(prepared)
        self._n_tokens[index] = 0
        role = {"role": "assistant", "content": self._asked.lead}
        choice = {"index": index, "delta": role, "logprobs": None, "finish_reason": None}
        return self._chunk(prepared, choice, ids)

    def _chunk(self, prepared: Prepared, choice: dict[str, Any], ids: Mapping[str, list[int]] = {}) -> bytes:
        body = {**self._head, "object": CHUNK, "choices": [choice], **ids}
        if self._asked.include_usage:
            body["usage"] = self._usage_so_far(prepared, choice["index"]) if self._asked.usage_so_far else None
        return data(body)

    def _usage_so_far(self, prepared: Prepared, index: int) -> dict[str, Any]:
        n, n_reasoning = self._n_tokens[index], self._n_reasoning.get(index)
        return usage(prepared, n, self._asked.context, so_far=True, n_reasoning=n_reasoning)

    def _beside(self, delta: Delta) -> dict[str, Any]:
        """What a choice has beside its text."""
        content = None
        if self._asked.sampling.logprobs:
            content = logprob_entries(delta.tokens, self._card.tokenizer, as_ids=self._asked.tokens_as_ids)
        return {
            "logprobs": None if content is None else {"content": content, "refusal": None},
            "finish_reason": delta.finish,
            **({"token_ids": [token.id for token in delta.tokens]} if self._asked.token_ids else {}),
        }

    def _ids_of(self, prepared: Prepared) -> dict[str, list[int]]:
        return {"prompt_token_ids": prompt_ids(prepared, self._card.pads)} if self._asked.token_ids else {}

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        if not self._asked.include_usage:
            return b""
        n_reasoning = sum(self._n_reasoning.values()) if self._n_reasoning else None
        counts = usage(prepared, n_tokens, self._asked.context, n_reasoning=n_reasoning)
        return data({**self._head, "object": CHUNK, "choices": [], "usage": counts})
