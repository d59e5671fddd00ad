"""The request bodies, read from bytes: types, ranges, and errors that name the field. Answers nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from server.http.errors import ServeError, bad_request, path_of
from server.http.parameters import INT32_MAX, NativeFields, SamplingFields
from server.requests.grounding import Grounding
from server.requests.sampling import Wishes
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.messages import Chat

NATIVE_KEYS = ("inputs", "history", "system")

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatBody:
    """A chat request of either dialect, read and checked."""

    chat: Chat
    field: str  # where the chat stands in the body: what an error about all of it names
    model: str | None
    wishes: Wishes
    stream: bool
    include_usage: bool
    grounding: Grounding = "none"


class StreamOptions(BaseModel):
    """OpenAI's `stream_options`."""

    model_config = ConfigDict(strict=True)

    include_usage: bool | None = None


class CompletionBody(SamplingFields):
    """OpenAI's chat completion request. Unknown fields are ignored; known ones that we do not do must be neutral."""

    model_config = ConfigDict(extra="ignore")

    messages: list[Any]
    model: str | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Any], Field(max_length=0)] | None = None
    tool_choice: Literal["none", "auto"] | None = None
    functions: Annotated[list[Any], Field(max_length=0)] | None = None
    response_format: Any = None

    @field_validator("response_format")
    @classmethod
    def text_only(cls, value: Any) -> Any:
        """Only free text can be promised."""
        if value is not None and (not isinstance(value, dict) or value.get("type") != "text"):
            raise ValueError('only {"type": "text"} is supported')
        return value

    @property
    def longest(self) -> int | None:
        """`max_completion_tokens` is the newer name and wins."""
        return self.max_completion_tokens or self.max_tokens


def read_openai(raw: bytes) -> ChatBody:
    """The body of POST /v1/chat/completions. Raises ServeError (400) and ChatError."""
    found = parsed(raw)
    if not isinstance(found, dict):
        raise bad_request("the body must be a JSON object", code="invalid_json")
    body = validated(lambda: CompletionBody.model_validate(found))
    return ChatBody(
        chat=chat_from_openai(body.messages),
        field="messages",
        model=body.model,
        wishes=body.wishes(),
        stream=bool(body.stream),
        include_usage=bool(body.stream_options and body.stream_options.include_usage),
    )


def read_native(raw: bytes) -> ChatBody:
    """The body of POST /chat: an object, or a bare list, which is its `inputs`. Raises ServeError (400), ChatError."""
    return native_chat(object_or_inputs(parsed(raw)))


def read_countable(raw: bytes) -> ChatBody:
    """The body of POST /tokenize, in either dialect: `messages`, or what /chat takes. Raises ServeError, ChatError."""
    body = object_or_inputs(parsed(raw))
    if "messages" not in body:
        return native_chat(body)
    model = model_of(body)
    if not isinstance(body["messages"], list):
        raise bad_request("must be a list", "messages")
    chat = chat_from_openai(body["messages"])
    return ChatBody(chat=chat, field="messages", model=model, wishes=Wishes(), stream=False, include_usage=False)


def native_chat(body: dict[str, Any]) -> ChatBody:
    """What /chat takes, as an object. Raises ServeError (400), ChatError."""
    unknown = sorted(set(body) - {*NATIVE_KEYS, "parameters", "stream", "model"})
    if unknown:
        raise bad_request(f"{unknown[0]!r} is not a field of a chat request", unknown[0], "unknown_field")
    stream = body.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise bad_request("must be true or false", "stream")
    model = model_of(body)
    parameters = body.get("parameters")
    fields = validated(lambda: NativeFields.model_validate({} if parameters is None else parameters), "parameters")
    chat = chat_from_native({key: body[key] for key in NATIVE_KEYS if key in body})
    return ChatBody(
        chat=chat,
        field="inputs",
        model=model,
        wishes=fields.wishes(),
        stream=bool(stream),
        include_usage=True,
        grounding="drawn" if fields.draw_boxes else "boxes",
    )


def model_of(body: dict[str, Any]) -> str | None:
    """The model that a body of /chat or /tokenize names. Raises ServeError (400)."""
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise bad_request("must be a string", "model")
    return model


def parsed(raw: bytes) -> Any:
    """The body's JSON. Raises ServeError (400)."""
    try:
        return pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise bad_request(f"the body is not valid JSON: {error}", code="invalid_json") from None


def object_or_inputs(body: Any) -> dict[str, Any]:
    """A JSON object; a bare list is the `inputs` of one. Raises ServeError (400)."""
    if isinstance(body, list):
        return {"inputs": body}
    if not isinstance(body, dict):
        raise bad_request("the body must be a JSON object or a list of inputs", code="invalid_json")
    return body


def validated(read: Callable[[], M], prefix: str = "") -> M:
    """What `read` gives. Its first complaint becomes a 400 that names the field and never repeats the value."""
    try:
        return read()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        raise _complaint(first["type"], first["msg"], first["loc"], prefix) from None


def _complaint(kind: str, message: str, loc: tuple[str | int, ...], prefix: str) -> ServeError:
    if kind == "value_error":  # one of our own validators
        message = message.removeprefix("Value error, ")
    param = path_of((prefix, *loc) if prefix else loc)
    if kind in SamplingFields.model_fields:  # a complaint about two fields is filed under the one that it blames
        param = path_of((prefix, kind) if prefix else (kind,))
    if kind == "extra_forbidden":
        return bad_request(f"{param}: there is no such parameter", param, "unknown_parameter")
    return bad_request(f"{param}: {message}" if param else message, param or None)
