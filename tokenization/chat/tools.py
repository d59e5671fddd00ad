"""Tool calls in a history, as OpenAI's messages hold them: an assistant's calls, and what the tools answered."""

import json
import math
from collections.abc import Callable
from typing import Any

from tokenization.chat.errors import ChatError, type_name
from tokenization.chat.parts import Chat, ToolCall

MAX_DEPTH = 32  # of lists and objects in a call's arguments

MAX_MARKS = 1 << 18  # brackets, commas and colons in the arguments of all calls of a chat, while they are texts of JSON

ReadText = Callable[[Any, str], str]  # a text of the client's and its path; raises ChatError


def read_tool_calls(value: Any, role: str, param: str, text: ReadText) -> tuple[ToolCall, ...]:
    """The `tool_calls` of a message; null and [] are none. Raises ChatError with the path of what is wrong."""
    if value is None or value == []:
        return ()
    if role != "assistant":
        raise ChatError(f"only an assistant's message may hold tool calls, this one is by '{role}'", param)
    if not isinstance(value, list):
        raise ChatError(f"expected a list, got {type_name(value)}", param)
    return tuple(_call(call, f"{param}[{i}]", text) for i, call in enumerate(value))


def check_arguments(messages: list[Any]) -> None:
    """Raise ChatError for arguments that would become too many objects: no count of the body looks into texts."""
    left = MAX_MARKS
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for k, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if isinstance(arguments, str):
                left -= sum(arguments.count(mark) for mark in "{[,:")
            if left < 0:
                raise ChatError(
                    f"the arguments of all tool calls together hold more than {MAX_MARKS} brackets, commas and colons",
                    f"messages[{i}].tool_calls[{k}].function.arguments",
                )


def refuse_tools(chat: Chat, *, calls: bool, answers: bool) -> None:
    """Raise ChatError for tool calls and tools' answers in a chat whose template has no place for them."""
    for turn in chat.turns:
        if turn.role == "tool" and not answers:
            raise ChatError(
                "the model's chat template has no place for a tool's answer; write it into a user's message",
                f"{turn.param}.role",
            )
        if turn.tool_calls and not calls:
            raise ChatError(
                "the model's chat template has no place for tool calls; leave them out or write them into content",
                turn.tool_calls[0].param.rpartition("[")[0],
            )


def _call(call: Any, param: str, text: ReadText) -> ToolCall:
    if not isinstance(call, dict):
        raise ChatError(f"expected an object with 'id' and 'function', got {type_name(call)}", param)
    if call.get("type") not in (None, "function"):
        raise ChatError("the type of a tool call is 'function'", f"{param}.type")
    function = call.get("function")
    if not isinstance(function, dict):
        raise ChatError(
            f"expected an object with 'name' and 'arguments', got {type_name(function)}", f"{param}.function"
        )
    name = text(function.get("name"), f"{param}.function.name")
    if not name.strip():
        raise ChatError("the name of a function is needed", f"{param}.function.name")
    arguments = _arguments(function.get("arguments"), f"{param}.function.arguments", text)
    number = call.get("id")
    return ToolCall(
        id=None if number is None else text(number, f"{param}.id"), name=name, arguments=arguments, param=param
    )


def _arguments(value: Any, param: str, text: ReadText) -> dict[str, Any]:
    """As templates take them, an object; OpenAI has it as a string of JSON, where none at all is an empty one."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ChatError("the arguments of a tool call must be a JSON object, this is no JSON", param) from None
    if not isinstance(value, dict):
        raise ChatError(f"the arguments of a tool call must be a JSON object, got {type_name(value)}", param)
    _check(value, param, text, MAX_DEPTH)
    return value


def _check(value: Any, param: str, text: ReadText, depth: int) -> None:
    """Whether it can travel and be rendered: neither too deep nor a number or a text that JSON has no bytes for."""
    if depth < 0:
        raise ChatError(f"lists and objects lie in each other more than {MAX_DEPTH} deep", param)
    if isinstance(value, str):
        text(value, param)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ChatError("a number must be finite", param)
    elif isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ChatError("a whole number must fit into 64 bits", param)
    elif isinstance(value, dict):
        for key, inner in value.items():
            text(key, param)
            _check(inner, param, text, depth - 1)
    elif isinstance(value, list):
        for inner in value:
            _check(inner, param, text, depth - 1)
