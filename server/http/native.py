"""POST /chat: the body of a request, and its answer as one flat object or as events that each hold a piece of text."""

from collections.abc import Sequence
from typing import Any

from server.http.answer_fields import logprob_entries, timed_usage
from server.http.json_slices import LazyList
from server.http.long_texts import Raw
from server.http.reading import model_of, object_or_inputs, parsed
from server.http.responses import data
from server.http.validation import validated
from server.request_context import RequestContext
from server.requests.answer import Delta, FinishReason, Grounded
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tokenization.chat.dialects import chat_from_native
from tokenization.chat.errors import shortened
from tokenization.messages import Prepared
from tokenization.text.tokenizer import Tokenizer

KEYS = ("inputs", "history", "system")
DRAW_BOXES = "draw_boxes"


def read_native(raw: Raw, request_id: str) -> ChatRequest:
    """The body of POST /chat: an object, or a bare list, which is its `inputs`. Raises Refusal, ChatError."""
    return native_chat(object_or_inputs(parsed(raw)), request_id)


def native_chat(body: dict[str, Any], request_id: str) -> ChatRequest:
    """What /chat takes, as an object. Raises Refusal, ChatError."""
    unknown = body.keys() - {*KEYS, "parameters", "stream", "model"}
    if unknown:
        name = shortened(min(unknown))
        raise invalid_request(f"{name!r} is not a field of a chat request", name, "unknown_field")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise invalid_request("must be true or false", "stream")
    model = model_of(body)
    parameters = {} if body.get("parameters") is None else body["parameters"]
    _refuse_unknown(parameters)
    sampling = validated(lambda: SamplingRequest.model_validate(parameters), "parameters")
    draws = parameters.get(DRAW_BOXES)
    if draws is not None and not isinstance(draws, bool):
        raise invalid_request(f"parameters.{DRAW_BOXES}: must be true or false", f"parameters.{DRAW_BOXES}")
    chat = chat_from_native({key: body[key] for key in KEYS if key in body})
    return ChatRequest(
        id=request_id,
        chat=chat,
        chat_param="inputs",
        model=model,
        sampling=sampling,
        stream=bool(stream),
        include_usage=True,
        grounding="drawn" if draws else "boxes",
    )


def _refuse_unknown(parameters: Any) -> None:
    """The first one by name; pydantic would make a complaint of each before one is told."""
    known = {*SamplingRequest.model_fields, DRAW_BOXES}
    unknown = set(parameters if isinstance(parameters, dict) else ()) - known
    if unknown:
        param = f"parameters.{shortened(min(unknown))}"
        raise invalid_request(f"{param}: there is no such parameter", param, "unknown_parameter")


class NativeSerializer:
    """POST /chat. Every event has `id`, `text` and `finish_reason`; the last one also has `usage` and boxes.

    Of several answers each is an object in `answers`, and each event says by `index` which one it lengthens. There an
    answer's own last event has its finish_reason and boxes, and the last event of all has `usage` alone.
    """

    def __init__(
        self, answer_id: str, tokenizer: Tokenizer, context: RequestContext, *, logprobs: bool, n: int = 1
    ) -> None:
        self._id = answer_id
        self._context = context
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._several = n > 1
        self._finish: FinishReason | None = None
        self._grounded: Grounded | None = None

    def whole(self, prepared: Prepared, answers: Sequence[Delta]) -> dict[str, Any]:
        counts = timed_usage(prepared, sum(len(answer.tokens) for answer in answers), self._context)
        if not self._several:
            return {"id": self._id, **self._body(answers[0]), "usage": counts}
        bodies = LazyList(lambda: ({"index": i, **self._body(whole)} for i, whole in enumerate(answers)))
        return {"id": self._id, "answers": bodies, "usage": counts}

    def _body(self, whole: Delta) -> dict[str, Any]:
        body: dict[str, Any] = {"text": whole.text, "finish_reason": whole.finish}
        if self._logprobs:
            body["logprobs"] = {"content": logprob_entries(whole.tokens, self._tokenizer)}
        return body | _beside(whole.grounded)

    def event(self, prepared: Prepared, delta: Delta) -> bytes:
        self._finish, self._grounded = delta.finish, delta.grounded
        ends = self._several and delta.finish is not None
        if not delta.text and not self._logprobs and not ends:
            return b""
        body: dict[str, Any] = {"id": self._id, "text": delta.text, "finish_reason": None}
        if self._several:
            body |= {"index": delta.index, "finish_reason": delta.finish}
        if self._logprobs:
            body["logprobs"] = {"content": logprob_entries(delta.tokens, self._tokenizer)}
        return data(body | _beside(delta.grounded) if ends else body)

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        body: dict[str, Any] = {"id": self._id, "text": "", "finish_reason": None}
        body["usage"] = timed_usage(prepared, n_tokens, self._context)
        if self._several:
            return data(body)
        return data({**body, "finish_reason": self._finish} | _beside(self._grounded))


def _beside(grounded: Grounded | None) -> dict[str, Any]:
    return {} if grounded is None else grounded.as_json()
