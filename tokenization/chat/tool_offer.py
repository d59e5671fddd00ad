"""The tools that a request offers to a model, and how it may call them: read from its body, field by field."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from tokenization.chat.errors import ChatError, expect, shortened, type_name
from tokenization.chat.grammar import Grammar
from tokenization.chat.tool_form import ToolForm
from tokenization.chat.tools import ReadText, measured

FIELDS = TOOLS, CHOICE, PARALLEL = "tools", "tool_choice", "parallel_tool_calls"

MOST_TOOLS = 128  # OpenAI's bound
MAX_CHARACTERS = 1 << 18  # of all tools of a request as JSON
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")  # OpenAI's rule, and dots

ToolChoice = Literal["auto", "none", "required", "named"]


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """One function that an answer may call."""

    name: str
    schema: str  # JSON text: what the arguments of a call are held to
    strict: bool = False  # as of Grammar
    param: str  # the field that the schema came from


class ToolOffer(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer may call, and whether it must."""

    tools: tuple[Tool, ...]  # at least one
    choice: Literal["auto", "required", "named"]
    single: bool = False  # one call at most
    form: ToolForm | None = None  # of the model that is served, once it is known


class CallRules(msgspec.Struct, frozen=True, kw_only=True):
    """All that says what an answer may be that may call tools: what its grammar is made from."""

    offer: ToolOffer
    special: dict[str, int]  # special tokens of the vocabulary that stand in the form of calls
    words: Grammar | None = None  # what an answer that does not call is held to: a JSON schema


def read_offer(body: Mapping[str, Any], text: ReadText) -> tuple[str, ToolOffer | None, tuple[str, ...]]:
    """The tools that the chat template shows, as JSON text ("": none), and what of them may be called (None: nothing).

    And those that are left out, by their type and name: what another server would run, or a form of call that these
    models were not taught. Coding clients send them beside functions in each request. Without a function they are
    refused: then they are what the answer is asked for. Raises ChatError, naming the field.
    """
    single = body.get(PARALLEL)
    if single is not None and not isinstance(single, bool):
        raise ChatError(f"{PARALLEL}: expected true or false, got {type_name(single)}", PARALLEL)
    shown, tools, left_out = _read_tools(body.get(TOOLS), text)
    choice, names = _read_choice(body.get(CHOICE))
    if not tools:
        if choice in ("required", "named"):
            raise ChatError(f"{CHOICE}: a call is demanded, but {TOOLS} holds none", CHOICE)
        return "", None, ()
    if choice == "none":
        return shown, None, left_out
    offered = {tool.name for tool in tools}
    for param, name in names.items():
        if name not in offered:
            raise ChatError(f"{param}: {TOOLS} holds no function '{shortened(name)}'", param)
    called = tuple(tool for tool in tools if not names or tool.name in names.values())
    return shown, ToolOffer(tools=called, choice=choice, single=single is False or choice == "named"), left_out


def _read_tools(value: Any, text: ReadText) -> tuple[str, Sequence[Tool], tuple[str, ...]]:
    if value is None or value == []:
        return "", (), ()
    if not isinstance(value, list):
        raise ChatError(f"{TOOLS}: expected a list of tools, got {type_name(value)}", TOOLS)
    if len(value) > MOST_TOOLS:
        raise ChatError(f"{TOOLS}: {len(value)} tools; at most {MOST_TOOLS} are taken", TOOLS)
    taken = list(enumerate(value))
    if any(isinstance(tool, dict) and tool.get("type") == "function" for tool in value):
        taken = [(i, tool) for i, tool in taken if not _is_hosted(tool)]
    size = sum(measured(tool, f"{TOOLS}[{i}]", text) for i, tool in taken)
    shown = ""
    if size <= MAX_CHARACTERS:  # not before it is known short
        shown = json.dumps([tool for _, tool in taken], ensure_ascii=False)
    if not 0 < len(shown) <= MAX_CHARACTERS:
        raise ChatError(f"{TOOLS}: more than {MAX_CHARACTERS} characters as JSON", TOOLS)
    found: dict[str, Tool] = {}
    for i, entry in taken:
        tool = _read_tool(entry, f"{TOOLS}[{i}]")
        if tool.name in found:
            param = f"{TOOLS}[{i}].function.name"
            raise ChatError(f"{param}: there are two functions '{tool.name}'", param)
        found[tool.name] = tool
    kept = {i for i, _ in taken}
    return shown, tuple(found.values()), tuple(_told(tool) for i, tool in enumerate(value) if i not in kept)


def _is_hosted(tool: Any) -> bool:
    """Whether it says that it is something else than a function."""
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function"


def _told(tool: dict[str, Any]) -> str:
    inside = tool.get(tool["type"])
    name = tool.get("name") or (inside.get("name") if isinstance(inside, dict) else None)
    return " ".join(shortened(word) for word in (tool["type"], name) if isinstance(word, str))


def _read_tool(entry: Any, param: str) -> Tool:
    entry = expect(entry, dict, "an object with 'type' and 'function'", param)
    if _is_hosted(entry):
        message = f"no tool runs here, and functions of the client's own alone are called, not '{_told(entry)}'"
        raise ChatError(message, f"{param}.type", "unsupported_parameter")
    if entry.get("type") != "function":
        raise ChatError(f"{param}.type: the type of a tool is 'function'", f"{param}.type")
    function = expect(entry.get("function"), dict, "an object with 'name' and 'parameters'", f"{param}.function")
    name = _name(function.get("name"), f"{param}.function.name")
    for key, kind, what in (("description", str, "a string"), ("strict", bool, "true or false")):
        if function.get(key) is not None:
            expect(function[key], kind, what, f"{param}.function.{key}")
    field = f"{param}.function.parameters"
    schema = _arguments(function.get("parameters"), field)
    return Tool(
        name=name, schema=json.dumps(schema, ensure_ascii=False), strict=function.get("strict") is True, param=field
    )


def _name(value: Any, param: str) -> str:
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise ChatError("the name of a function is 1 to 64 letters, digits, '_', '-' and '.'", param)
    return value


def _arguments(schema: Any, param: str) -> dict[str, Any]:
    """The schema of a call's arguments, which are an object.

    Without `parameters` it is empty. Properties that the schema does not name are left out, unless it says otherwise:
    a function is called with what it knows.
    """
    if schema is None:
        schema = {}
    schema = expect(schema, dict, "a JSON schema, an object", param)
    if schema.get("type", "object") != "object":
        raise ChatError("the schema of a function's arguments has the type 'object'", f"{param}.type")
    open_by = {"additionalProperties", "patternProperties", "$ref", "allOf", "anyOf", "oneOf", "unevaluatedProperties"}
    closed = {} if open_by & schema.keys() else {"additionalProperties": False}
    return {"type": "object", "properties": {}, **schema, **closed}


def _read_choice(value: Any) -> tuple[ToolChoice, Mapping[str, str]]:
    """And the names that it allows, by the fields that they stand in; none: all."""
    if value is None or value == "auto":
        return "auto", {}
    if value == "none":
        return "none", {}
    if value == "required":
        return "required", {}
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        return "named", _named([value], CHOICE, first=CHOICE)
    if kind == "allowed_tools":
        param = f"{CHOICE}.allowed_tools"
        allowed = expect(value.get("allowed_tools"), dict, "an object with 'mode' and 'tools'", param)
        mode = allowed.get("mode")
        if mode not in ("auto", "required"):
            raise ChatError("the mode is 'auto' or 'required'", f"{param}.mode")
        tools = expect(allowed.get("tools"), list, "a list of tools", f"{param}.tools")
        if not 0 < len(tools) <= MOST_TOOLS:
            raise ChatError(f"1 to {MOST_TOOLS} tools are taken", f"{param}.tools")
        return mode, _named(tools, f"{param}.tools")
    raise ChatError(
        f'{CHOICE}: takes "auto", "none", "required", {{"type": "function", "function": {{"name": "..."}}}} or '
        '{"type": "allowed_tools", "allowed_tools": {"mode": "...", "tools": [...]}}',
        CHOICE,
    )


def _named(tools: list[Any], param: str, first: str | None = None) -> dict[str, str]:
    names: dict[str, str] = {}
    for i, tool in enumerate(tools):
        field = first or f"{param}[{i}]"
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        function = expect(function, dict, "a function with its 'name'", f"{field}.function")
        names[f"{field}.function.name"] = _name(function.get("name"), f"{field}.function.name")
    return names
