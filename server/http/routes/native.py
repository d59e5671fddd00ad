"""POST /chat: the body of a request, and its answer as one flat object or as events that each hold a piece of text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from configs.nearest import did_you_mean
from server.http.long_texts import Raw
from server.http.reading import body_object
from server.http.responses import LazyList, data
from server.http.routes.answer_fields import call_json, logprob_entries, media_json, thought_tokens, usage
from server.http.routes.structured import FORMS, read_grammar
from server.http.validation import BodyFields, validated
from server.request_context import RequestContext
from server.requests.answer import Delta, FinishReason, Grounded
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tokenization.chat.dialects import chat_from_native, with_tools
from tokenization.chat.errors import shortened
from tokenization.chat.tool_offer import FIELDS
from tokenization.messages import Prepared
from tokenization.text.tokenizer import Tokenizer

CHAT = frozenset({"inputs", "tool_results", "history", "system"})
KEYS = frozenset({*CHAT, "parameters", "stream", "model", "cache_salt", *FORMS, *FIELDS})
DRAW_BOXES = "draw_boxes"
PARAMETERS = frozenset({*SamplingRequest.model_fields, DRAW_BOXES})
ELSEWHERE = {"messages": "; POST /v1/chat/completions takes it", "prompt": "; POST /v1/completions takes it"}


class NativeBody(BodyFields):
    """What /chat takes beside a chat and its parameters."""

    stream: bool | None = Field(None, description="The answer is server-sent events.")


def read_native(raw: Raw, request_id: str) -> ChatRequest:
    """The body of POST /chat: an object, or a bare list, which is its `inputs`. Raises Refusal, ChatError."""
    return native_chat(body_object(raw, or_inputs=True), request_id)


def native_chat(body: dict[str, Any], request_id: str) -> ChatRequest:
    """What /chat takes, as an object. Raises Refusal, ChatError."""
    if unknown := body.keys() - KEYS:
        name = shortened(min(unknown))
        meant = "; it stands in 'parameters'" if name in PARAMETERS else ELSEWHERE.get(name) or did_you_mean(name, KEYS)
        raise invalid_request(f"{name!r} is not a field of a chat request{meant}", name, "unknown_field")
    fields = validated(NativeBody, body)
    parameters = {} if body.get("parameters") is None else body["parameters"]
    if isinstance(parameters, dict) and (unknown := parameters.keys() - PARAMETERS):
        name = shortened(min(unknown))  # the first one alone: pydantic would complain of each
        message = f"parameters.{name}: there is no such parameter{did_you_mean(name, PARAMETERS)}"
        raise invalid_request(message, f"parameters.{name}", "unknown_parameter")
    sampling = validated(SamplingRequest, parameters, "parameters")
    draws = parameters.get(DRAW_BOXES)
    if draws is not None and not isinstance(draws, bool):
        raise invalid_request(f"parameters.{DRAW_BOXES}: must be true or false", f"parameters.{DRAW_BOXES}")
    chat, offer = with_tools(chat_from_native(body), body)
    return ChatRequest(
        id=request_id,
        chat=chat,
        chat_param="inputs",
        model=fields.model,
        sampling=sampling,
        stream=bool(fields.stream),
        include_usage=True,
        grounding="drawn" if draws else "boxes",
        cache_salt=fields.cache_salt or "",
        grammar=read_grammar(body) if body.keys() & FORMS else None,
        tools=offer,
    )


@dataclass(slots=True)
class NativeSerializer:
    """POST /chat. Every event has `id`, `text` and `finish_reason`; the last one also has `usage` and boxes.

    Of several answers each is an object in `answers`, and each event says by `index` which one it lengthens. There an
    answer's own last event has its finish_reason and boxes, and the last event of all has `usage` alone.
    """

    answer_id: str
    tokenizer: Tokenizer
    context: RequestContext
    logprobs: bool
    n: int = 1
    _finish: FinishReason | None = None
    _grounded: Grounded | None = None
    _n_reasoning: int | None = None  # tokens of thoughts so far; None: no answer began in one

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        counts = self._counts(prepared, n_tokens, thought_tokens(answers) if answers[0].n_thought else None)
        if self.n == 1:
            return {"id": self.answer_id, **self._body(answers[0]), **counts}
        bodies = LazyList(lambda: ({"index": i, **self._body(whole)} for i, whole in enumerate(answers)))
        return {"id": self.answer_id, "answers": bodies, **counts}

    def _counts(self, prepared: Prepared, n_tokens: int, n_reasoning: int | None) -> dict[str, Any]:
        counts: dict[str, Any] = {"usage": usage(prepared, n_tokens, self.context, n_reasoning=n_reasoning)}
        return counts | {"media": media_json(prepared)} if prepared.media else counts

    def _body(self, whole: Delta) -> dict[str, Any]:
        body: dict[str, Any] = {"text": whole.text, "finish_reason": whole.finish}
        if whole.reasoning is not None:
            body["reasoning"] = whole.reasoning
        if whole.calls:
            body["tool_calls"] = [{"index": call.index, **call_json(call)} for call in whole.calls]
        if self.logprobs:
            body["logprobs"] = {"content": logprob_entries(whole.tokens, self.tokenizer)}
        if whole.grounded is not None:
            body |= whole.grounded.as_json()
        return body

    def event(self, prepared: Prepared, delta: Delta) -> bytes:
        if self.n == 1:
            self._finish, self._grounded = delta.finish, delta.grounded
        if delta.n_thought:
            self._n_reasoning = (self._n_reasoning or 0) + delta.n_reasoning
        if not (delta.text or delta.reasoning or delta.calls or self.logprobs or (self.n > 1 and delta.finish)):
            return b""
        if self.n > 1:
            return data({"id": self.answer_id, "index": delta.index, **self._body(delta)})
        # Its end and its boxes stand in the last event.
        alone = Delta(text=delta.text, tokens=delta.tokens, calls=delta.calls, reasoning=delta.reasoning)
        return data({"id": self.answer_id, **self._body(alone)})

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        body: dict[str, Any] = {"id": self.answer_id, "text": "", "finish_reason": self._finish}
        body |= self._counts(prepared, n_tokens, self._n_reasoning)
        if self._grounded is not None:
            body |= self._grounded.as_json()
        return data(body)
