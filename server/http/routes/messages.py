"""POST /v1/messages and its count_tokens: the body as Anthropic has it, and the answer as blocks or as named events."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import pydantic_core
from pydantic import BaseModel, ConfigDict, Field, model_validator

from server.http.long_texts import Raw
from server.http.reading import body_object
from server.http.responses import data
from server.http.routes.answer_fields import usage
from server.http.routes.vllm_fields import VllmField, refuse_unsupported
from server.http.validation import BodyFields, validated
from server.request_context import RequestContext
from server.requests.answer import Delta
from server.requests.refusal import invalid_request
from server.requests.request import ChatRequest
from server.requests.sampling import INT32_MAX, SamplingRequest
from tokenization.chat.blocks import chat_from_blocks
from tokenization.chat.dialects import with_tools
from tokenization.chat.errors import ChatError, expect
from tokenization.chat.parts import Chat
from tokenization.chat.tool_offer import CHOICE, PARALLEL, TOOLS, ToolOffer
from tokenization.messages import Prepared
from tokenization.text.call_parser import CallPiece

LEAST_BUDGET = 1024  # tokens, as Anthropic has it
RENAMED = {"stop": "stop_sequences"}
KEEPING = "clear_thinking_20251015"  # an edit that clears nothing where it keeps all
CHOICES = {"auto": "auto", "any": "required", "none": "none"}
OUR_FIELDS = ((r"\.function\.parameters", ".input_schema"), (r"\.function\b", ""))  # of a tool, and what they are there
_FORM = "not supported here; other routes take response_format"
REFUSED = tuple(
    VllmField(name=name, treatment="refused", note=note, neutral=([],) if name == "mcp_servers" else ())
    for name, note in (
        ("container", "answers run no code; leave it out"),
        ("mcp_servers", "this server calls no other; give the tools as tools"),
        ("thread", "nothing is stored here: send the whole conversation as messages"),
        ("compaction", "not supported; ask for a summary in a message, and leave out old turns"),
        *((name, _FORM) for name in ("output_format", "response_format")),
    )
)
# Of a tool: the values, besides null, that change nothing.
TOOL_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "defer_loading": (False,), "allowed_callers": (["direct"], []), "input_examples": ([],)
}  # fmt: skip


class Labels(BaseModel):
    """Of the client's own; nothing reads it."""

    model_config = ConfigDict(strict=True)

    user_id: Annotated[str, Field(max_length=256)] | None = None  # as Anthropic has it


class Thinking(BaseModel):
    """Whether the model is to think aloud: its prompt decides it."""

    model_config = ConfigDict(strict=True)

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: Annotated[int, Field(ge=LEAST_BUDGET)] | None = Field(
        None, description="With the type `enabled`. No bound: `max_tokens` bounds thoughts and words together."
    )

    @model_validator(mode="after")
    def go_together(self) -> "Thinking":
        """As Anthropic has it."""
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise ValueError("budget_tokens must stand beside the type 'enabled', and beside no other")
        return self


class CountedBody(BodyFields):
    """What becomes a prompt, of both routes."""

    messages: list[Any]
    thinking: Thinking | None = Field(None, description="`enabled` is for models that think aloud. It changes nothing.")
    context_management: dict[str, Any] | None = Field(
        None, description=f"Edits that clear nothing: none, or `{KEEPING}` with `keep` of `all`."
    )

    @property
    def wants_thoughts(self) -> bool:
        """`adaptive` leaves it to the model, which may think of nothing."""
        return self.thinking is not None and self.thinking.type == "enabled"


class MessagesBody(CountedBody):
    """What is honoured of Anthropic's request for a message."""

    max_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)]
    stop_sequences: list[str] | None = Field(None, description="Strings that end the answer, at most 16.")
    stream: bool | None = Field(None, description="The answer is server-sent events.")
    metadata: Labels | None = Field(None, description="Changes nothing.")


def read_messages(raw: Raw, request_id: str) -> ChatRequest:
    """The body of POST /v1/messages. Raises Refusal and ChatError."""
    found = body_object(raw)
    body = validated(MessagesBody, found)
    asked = {name: found.get(name) for name in ("max_tokens", "temperature", "top_p", "top_k")}
    sampling = validated(SamplingRequest, {**asked, "stop": body.stop_sequences}, renamed=RENAMED)
    chat, offer = _chat(found)
    return ChatRequest(
        id=request_id,
        chat=chat,
        chat_param="messages",
        model=body.model,
        sampling=sampling,
        stream=bool(body.stream),
        cache_salt=body.cache_salt or "",
        tools=offer,
        wants_thoughts=body.wants_thoughts,
        renamed=tuple(RENAMED.items()),
    )


def read_counted(raw: Raw, request_id: str) -> ChatRequest:
    """The body of POST /v1/messages/count_tokens. Raises Refusal and ChatError."""
    found = body_object(raw)
    model = validated(CountedBody, found).model
    return ChatRequest(id=request_id, chat=_chat(found)[0], chat_param="messages", model=model)


def _chat(body: Mapping[str, Any]) -> tuple[Chat, ToolOffer | None]:
    refuse_unsupported(body, REFUSED)
    _check_context(body.get("context_management"))
    output = body.get("output_config")
    if output is not None and expect(output, dict, "an object", "output_config").get("format") is not None:
        param = "output_config.format"
        raise invalid_request(f"{param}: {_FORM}", param, "unsupported_parameter")
    chat, offer = chat_from_blocks(body["messages"], body.get("system")), None
    try:
        chat, offer = with_tools(chat, _tools(body))
    except ChatError as error:
        raise ChatError(_our(error.message), _our(error.param or TOOLS), error.code) from None
    if offer is not None:
        tools = tuple(msgspec.structs.replace(tool, param=_our(tool.param)) for tool in offer.tools)
        offer = msgspec.structs.replace(offer, tools=tools)
    return chat, offer


def _check_context(value: Mapping[str, Any] | None) -> None:
    """Raise ChatError, and Refusal for what would clear something: the whole chat is read."""
    field = "context_management"
    edits = None if value is None else value.get("edits")
    for i, edit in enumerate([] if edits is None else expect(edits, list, "a list", f"{field}.edits")):
        kind = expect(edit, dict, "an object with a 'type'", f"{field}.edits[{i}]").get("type")
        if kind != KEEPING or edit.get("keep") not in ("all", {"type": "all"}):
            message = f"{field}: nothing is cleared here, the whole chat is read; leave out old turns"
            raise invalid_request(message, f"{field}.edits[{i}]", "unsupported_parameter")


def _our(words: str) -> str:
    """With a tool's fields as Anthropic calls them."""
    for pattern, name in OUR_FIELDS:
        words = re.sub(rf"({TOOLS}\[\d+\]|{CHOICE}){pattern}", rf"\1{name}", words)
    return words


def _tools(body: Mapping[str, Any]) -> dict[str, Any]:
    """The tools and the choice among them as the other routes take them: so templates see the same."""
    found: dict[str, Any] = {}
    tools, choice = body.get("tools"), body.get("tool_choice")
    if isinstance(tools, list):
        found[TOOLS] = [_tool(tool, f"{TOOLS}[{i}]") for i, tool in enumerate(tools)]
    elif tools is not None:
        found[TOOLS] = tools  # which is refused
    if choice is None:
        return found
    kind = expect(choice, dict, "an object with a 'type'", CHOICE).get("type")
    if kind == "tool":
        found[CHOICE] = {"type": "function", "function": {"name": choice.get("name")}}
    elif isinstance(kind, str) and kind in CHOICES:
        found[CHOICE] = CHOICES[kind]
    else:
        raise ChatError("the type of a choice is 'auto', 'any', 'tool' or 'none'", f"{CHOICE}.type")
    alone = choice.get("disable_parallel_tool_use")
    if alone is not None:
        found[PARALLEL] = not expect(alone, bool, "true or false", f"{CHOICE}.disable_parallel_tool_use")
    return found


def _tool(tool: Any, param: str) -> dict[str, Any]:
    tool = expect(tool, dict, "an object with 'name' and 'input_schema'", param)
    kind = tool.get("type")
    if isinstance(kind, str) and kind not in ("custom", "function"):
        return {key: tool[key] for key in ("type", "name") if key in tool}  # left out, or refused
    if kind not in (None, "custom"):
        raise ChatError("this server runs no tool itself: the type of a tool is 'custom'", f"{param}.type")
    for name, neutral in TOOL_FIELDS.items():
        if tool.get(name) is not None and tool[name] not in neutral:
            raise ChatError(f"{param}.{name}: not supported; leave it out", f"{param}.{name}", "unsupported_parameter")
    schema = expect(tool.get("input_schema"), dict, "a JSON schema, an object", f"{param}.input_schema")
    told = {name: tool[name] for name in ("name", "description", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": {**told, "parameters": schema}}


class MessageSerializer:
    """POST /v1/messages. An answer is a list of blocks: its thought, its words, and each call of a tool."""

    def __init__(self, request: ChatRequest, model: str) -> None:
        self._context = request.context
        self._head = {"id": f"msg_{request.id}", "type": "message", "role": "assistant", "model": model}
        self._signature = request.id  # nothing is signed; clients hand back no thought without one
        self._n_blocks = 0  # of a stream, that were opened
        self._open = ""  # the type of the last one, until it is closed
        self._called = False
        self._last: Delta | None = None

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        (answer,) = answers
        blocks: list[dict[str, Any]] = []
        if answer.reasoning:
            blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": self._signature})
        blocks += [{"type": "text", "text": answer.text}] if answer.text else []
        blocks += [{**_opened(call), "input": _given(call.arguments)} for call in answer.calls]
        counts = message_usage(prepared, n_tokens, self._context)
        return {**self._head, "content": blocks, **_end(answer, called=bool(answer.calls)), "usage": counts}

    def event(self, prepared: Prepared, delta: Delta) -> bytes:
        opening = b"" if self._last is not None else self._opening(prepared, len(delta.tokens))
        self._last = delta
        return opening + b"".join(map(data, self._events(delta)))

    def _opening(self, prepared: Prepared, n_tokens: int) -> bytes:
        counts = message_usage(prepared, n_tokens, self._context, so_far=True)
        none: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": counts}
        return data({"type": "message_start", "message": {**self._head, **none}}) + data({"type": "ping"})

    def _events(self, delta: Delta) -> Iterator[dict[str, Any]]:
        if delta.reasoning:
            if self._open != "thinking":
                yield self._start({"type": "thinking", "thinking": "", "signature": ""})
            yield self._added({"type": "thinking_delta", "thinking": delta.reasoning})
        if delta.text:
            if self._open != "text":
                yield from self._closed()
                yield self._start({"type": "text", "text": ""})
            yield self._added({"type": "text_delta", "text": delta.text})
        for call in delta.calls:
            if call.id:
                yield from self._closed()
                yield self._start({**_opened(call), "input": {}})
                self._called = True
            if call.arguments:
                yield self._added({"type": "input_json_delta", "partial_json": call.arguments})

    def _start(self, block: dict[str, Any]) -> dict[str, Any]:
        self._open = block["type"]
        self._n_blocks += 1
        return {"type": "content_block_start", "index": self._n_blocks - 1, "content_block": block}

    def _added(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._n_blocks - 1, "delta": delta}

    def _closed(self) -> Iterator[dict[str, Any]]:
        if self._open == "thinking":
            yield self._added({"type": "signature_delta", "signature": self._signature})
        if self._open:
            self._open = ""
            yield {"type": "content_block_stop", "index": self._n_blocks - 1}

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes:
        assert self._last is not None, "what ends without an error has been answered"
        counts = message_usage(prepared, n_tokens, self._context)
        end = {"type": "message_delta", "delta": _end(self._last, called=self._called), "usage": counts}
        return b"".join(map(data, (*self._closed(), end, {"type": "message_stop"})))


def _opened(call: CallPiece) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name}


def _given(arguments: str) -> Any:
    """A call's JSON as an object; of one that max_tokens cut what is there of it, as the SDK reads a stream.

    Empty where the parser has no room for it: lists in hundreds of lists, numbers of thousands of digits.
    """
    try:
        return pydantic_core.from_json(arguments or "{}", allow_partial="trailing-strings")
    except ValueError:
        return {}


def _end(last: Delta, *, called: bool) -> dict[str, Any]:
    """Why an answer ended, and at which stop string."""
    reason = "tool_use" if called else "end_turn"
    if last.cut:
        reason = "stop_sequence"
    elif last.finish == "length":
        reason = "max_tokens"
    return {"stop_reason": reason, "stop_sequence": last.cut or None}


def message_usage(
    prepared: Prepared, n_tokens: int, context: RequestContext, *, so_far: bool = False
) -> dict[str, Any]:
    """As `usage` has it, by Anthropic's names: what was read from a cache is no part of `input_tokens`."""
    counts = usage(prepared, n_tokens, context, so_far=so_far)
    cached = min(context.cached_tokens, counts["prompt_tokens"])
    return {
        "input_tokens": counts["prompt_tokens"] - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": n_tokens,
        **{name: counts[name] for name in ("reduced_media", "timings") if name in counts},
    }
