"""POST /v1/responses, OpenAI's newer form without its store: the body of a request, as a chat."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from server.http.field_names import FieldNames
from server.http.long_texts import Raw
from server.http.reading import body_object
from server.http.routes.responses_items import Messages
from server.http.routes.structured import OUTPUTS, read_grammar
from server.http.routes.vllm_fields import RESPONSES_FIELDS, refuse_unsupported, tell_misspelt
from server.http.validation import BodyFields, validated
from server.requests.request import ChatRequest
from server.requests.sampling import INT32_MAX, MAX_LOGPROBS, SamplingRequest
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.errors import ChatError, expect
from tokenization.chat.rendering import with_rendering
from tokenization.chat.tool_offer import MOST_TOOLS

LOGPROBS = "message.output_text.logprobs"
KNOWN = frozenset(field.name for field in RESPONSES_FIELDS)
NAMES: Mapping[str, str] = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "include",
    "response_format": "text.format",
    "response_format.json_schema": "text.format",
    "tool_choice.function": "tool_choice",
    "tool_choice.allowed_tools": "tool_choice",
}
COPIES, HEADS = 5, 3  # of a stream: events with all of a text or its pieces, and events with the whole response
TOOL = ("name", "description", "parameters", "strict")  # what the model is shown of a function

# What else an answer may be asked to include; nothing here makes any of it.
Included = Literal[
    "message.output_text.logprobs", "reasoning.encrypted_content", "message.input_image.image_url",
    "file_search_call.results", "web_search_call.results", "web_search_call.action.sources",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
]  # fmt: skip
Label = Annotated[str, StringConstraints(max_length=64)]
LabelText = Annotated[str, StringConstraints(max_length=512)]
ShortText = Annotated[str, StringConstraints(max_length=1024)]


class TextField(BaseModel):
    model_config = ConfigDict(strict=True)

    format: Any = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesBody(BodyFields):
    """What is looked at of OpenAI's request beside its chat and what other routes have, too."""

    input: Any
    instructions: str | None = Field(None, description="A system message in front of all.")
    max_output_tokens: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None, description="What the model's length leaves, unless given."
    )
    max_tool_calls: Annotated[int, Field(ge=1, le=INT32_MAX)] | None = Field(
        None, description="The answer repeats it; no tool runs here."
    )
    include: Annotated[list[Included], Field(max_length=16)] | None = Field(
        None, description=f"`{LOGPROBS}` shows log-probabilities; nothing here makes any of the others."
    )
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = Field(
        None, description="So many likely tokens stand beside each, with `include`."
    )
    text: TextField | None = None
    metadata: Annotated[dict[Label, LabelText], Field(max_length=16)] | None = Field(
        None, description="The answer repeats it."
    )
    reasoning: dict[str, Any] | None = Field(
        None, description="Changes nothing: the checkpoint's prompt says whether it thinks aloud."
    )
    include_reasoning: bool | None = Field(
        None, description="If false, thoughts are no items of the answer; they count."
    )
    store: bool | None = Field(None, description="Nothing is stored, whatever it says.")
    stream: bool | None = Field(None, description="The answer is server-sent events.")
    stream_options: dict[str, Any] | None = Field(None, description="Changes nothing.")
    user: ShortText | None = Field(None, description="The answer repeats it.")
    safety_identifier: ShortText | None = Field(None, description="The answer repeats it.")
    prompt_cache_key: ShortText | None = Field(None, description="The answer repeats it.")
    service_tier: ShortText | None = Field(None, description="Changes nothing.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """One body: its chat, the client's names of its fields, and what the answer repeats of it."""

    request: ChatRequest
    names: FieldNames
    said: Mapping[str, Any]

    @property
    def model(self) -> str | None:
        return self.request.model


def read_responses(raw: Raw, request_id: str) -> ResponsesRequest:
    """The body of POST /v1/responses. Raises Refusal and ChatError."""
    found = body_object(raw)
    refuse_unsupported(found, RESPONSES_FIELDS)
    tell_misspelt(found, request_id, KNOWN)
    body = validated(ResponsesBody, found)
    shown = LOGPROBS in (body.include or ())
    names = FieldNames(known=dict(NAMES))
    with names.told():
        chat = {
            **found,
            "max_tokens": body.max_output_tokens,
            "logprobs": shown,
            "top_logprobs": body.top_logprobs if shown else None,
            "tools": _tools(found.get("tools"), names),
            "tool_choice": _tool_choice(found.get("tool_choice"), names),
        }
        sampling = validated(SamplingRequest, chat)
        read, offer = with_tools(with_rendering(chat_from_openai(Messages(names).read(found)), chat), chat)
        grammar = read_grammar({"response_format": _format(body.text), OUTPUTS: found.get(OUTPUTS)})
        if grammar is not None:  # a compiler's message has their names inside
            grammar = msgspec.structs.replace(grammar, param=names.of(grammar.param))
        if offer is not None:
            tools = tuple(msgspec.structs.replace(tool, param=names.of(tool.param)) for tool in offer.tools)
            offer = msgspec.structs.replace(offer, tools=tools)
        repeated = len(body.instructions or "") + len(read.tools) + len(grammar.source if grammar else "")
        request = ChatRequest(
            id=request_id,
            chat=read,
            chat_param="input",
            model=body.model,
            sampling=sampling,
            stream=bool(body.stream),
            cache_salt=body.cache_salt or "",
            grammar=grammar,
            tools=offer,
            shows_thoughts=body.include_reasoning is not False,
            copies=COPIES if body.stream else 1,
            repeated=repeated * HEADS if body.stream else repeated,
        )
    return ResponsesRequest(request=request, names=names, said=_said(found, body))


def _tools(value: Any, names: FieldNames) -> Any:
    """As a chat has them; what is no list of functions is for its reader to refuse."""
    if not isinstance(value, list) or len(value) > MOST_TOOLS:
        return value
    found = []
    for i, tool in enumerate(value):
        tool = expect(tool, dict, "an object with 'type' and 'name'", f"tools[{i}]")
        if tool.get("type") != "function":
            found.append({key: tool[key] for key in ("type", "name") if key in tool})  # left out, or refused
            continue
        names.known[f"tools[{i}].function"] = f"tools[{i}]"
        function = {key: tool[key] for key in TOOL if tool.get(key) is not None}
        found.append({"type": "function", "function": function})
    return found


def _shown_choice(value: Any) -> Any:
    """What was read of it, and nothing beside that."""
    if not isinstance(value, dict):
        return value or "auto"
    if value["type"] == "function":
        return {"type": "function", "name": value["name"]}
    tools = [{"type": "function", "name": tool["name"]} for tool in value["tools"]]
    return {"type": "allowed_tools", "mode": value["mode"], "tools": tools}


def _tool_choice(value: Any, names: FieldNames) -> Any:
    if value is None or value in ("auto", "none", "required"):
        return value
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        return {"type": kind, "function": {"name": value.get("name")}}
    if kind == "allowed_tools":
        tools = value.get("tools")
        if isinstance(tools, list) and len(tools) <= MOST_TOOLS:
            allowed = [_tool_choice(tool, names) if isinstance(tool, dict) else tool for tool in tools]
            for i in range(len(tools)):
                names.known[f"tool_choice.allowed_tools.tools[{i}].function"] = f"tool_choice.tools[{i}]"
            tools = allowed
        return {"type": kind, "allowed_tools": {"mode": value.get("mode"), "tools": tools}}
    raise ChatError(
        'tool_choice: takes "auto", "none", "required", {"type": "function", "name": "..."} or {"type": '
        '"allowed_tools", "mode": "...", "tools": [...]}',
        "tool_choice",
    )


def _format(text: TextField | None) -> Any:
    """As a chat has it; what is no form is for its reader to refuse."""
    value = None if text is None else text.format
    if value is not None and not isinstance(value, dict):
        raise ChatError(
            'text.format: takes {"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "name": "...", '
            '"schema": {...}}',
            "text.format",
        )
    if value is None or value.get("type") in ("text", "json_object"):
        return value
    if value.get("type") != "json_schema":
        return {"type": value.get("type")}  # which is refused, before anything beside it
    return {"type": "json_schema", "json_schema": {key: one for key, one in value.items() if key != "type"}}


def _said(found: Mapping[str, Any], body: ResponsesBody) -> dict[str, Any]:
    """What an answer repeats, with OpenAI's values for what was left out."""
    given = [tool for tool in found.get("tools") or () if tool["type"] == "function"]
    tools = [{"type": "function", **{key: tool.get(key) for key in TOOL}} for tool in given]
    text: dict[str, Any] = {"format": {"type": "text"}}
    if body.text is not None:
        text |= {key: value for key, value in body.text if value is not None}
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "parallel_tool_calls": found.get("parallel_tool_calls") is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "text": text,
        "tool_choice": _shown_choice(found.get("tool_choice")),
        "tools": tools,
        "top_logprobs": body.top_logprobs or 0,
        "truncation": "disabled",
        "user": body.user,
    }
