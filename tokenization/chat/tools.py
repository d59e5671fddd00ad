"""Tool calls in histories: an assistant's calls and the tools' answers."""

import functools
import json
import math
from collections.abc import Callable
from typing import Any

from tokenization.chat.errors import ChatError, expect, type_name
from tokenization.chat.parts import Boxes, Chat, Media, Text, ToolCall

MAX_DEPTH = 32  # of lists and objects in a call's arguments, and in a tool
MAX_DIGITS = 20  # of a whole number: with a sign, none of 64 bits has more
MAX_CHARACTERS = 1 << 22  # of the arguments of all calls of a chat, while they are texts of JSON
MAX_MARKS = 1 << 18  # brackets, commas and colons in them

TOO_LARGE = "a whole number must fit into 64 bits"

ReadText = Callable[[Any, str], str]  # a text of the client's and its path; raises ChatError


def read_tool_calls(value: Any, role: str, param: str, text: ReadText) -> tuple[ToolCall, ...]:
    """The `tool_calls` of a message; null and [] are none. Raises ChatError with the path of what is wrong."""
    if value is None or value == []:
        return ()
    if role != "assistant":
        raise ChatError(f"only an assistant's message may hold tool calls, this one is by '{role}'", param)
    calls = expect(value, list, "a list", param)
    return tuple(_call(call, f"{param}[{i}]", text) for i, call in enumerate(calls))


def check_arguments(messages: list[Any], name: str) -> None:
    """Raise ChatError for arguments that would take long to read: no count of the body looks into texts.

    name: of the field that is a list of what may hold `tool_calls`.
    """
    characters, marks = MAX_CHARACTERS, MAX_MARKS
    for i, message in enumerate(messages):
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        for k, call in enumerate(calls if isinstance(calls, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if not isinstance(arguments, str):
                continue
            param = f"{name}[{i}].tool_calls[{k}].function.arguments"
            characters -= len(arguments)
            if characters < 0:
                raise ChatError(f"the arguments of all tool calls have more than {MAX_CHARACTERS} characters", param)
            marks -= sum(arguments.count(mark) for mark in "{[,:")
            if marks < 0:
                raise ChatError(
                    f"the arguments of all tool calls together hold more than {MAX_MARKS} brackets, commas and colons",
                    param,
                )


def tools_answer(parts: tuple[Text | Media | Boxes, ...]) -> tuple[tuple[Text | Media | Boxes, ...], bool]:
    """Texts alone become one, as templates expect a tool's answer. And whether they did."""
    texts = [part.text for part in parts if isinstance(part, Text)]
    return ((Text(text="\n".join(texts)),), True) if len(texts) == len(parts) else (parts, False)


def refuse_tools(chat: Chat, *, calls: bool, answers: bool) -> None:
    """Raise ChatError for tool calls and tools' answers in a chat whose template has no place for them."""
    for turn in chat.turns:
        if turn.role == "tool" and not answers:
            raise ChatError(
                "the model's chat template has no place for a tool's answer; write it into a user's message",
                turn.param,
            )
        if turn.tool_calls and not calls:
            raise ChatError(
                "the model's chat template has no place for tool calls; leave them out or write them into content",
                turn.tool_calls[0].param.rpartition("[")[0],
            )


def _call(call: Any, param: str, text: ReadText) -> ToolCall:
    call = expect(call, dict, "an object with 'id' and 'function'", param)
    if call.get("type") not in (None, "function"):
        raise ChatError("the type of a tool call is 'function'", f"{param}.type")
    function = expect(call.get("function"), dict, "an object with 'name' and 'arguments'", f"{param}.function")
    name = text(function.get("name"), f"{param}.function.name")
    if not name.strip():
        raise ChatError("the name of a function is needed", f"{param}.function.name")
    arguments, size = _arguments(function.get("arguments"), f"{param}.function.arguments", text)
    number = None if call.get("id") is None else text(call["id"], f"{param}.id")
    size += len(name) + len(number or "")
    return ToolCall(id=number, name=name, arguments=arguments, size=size, param=param)


def _arguments(value: Any, param: str, text: ReadText) -> tuple[dict[str, Any], int]:
    """As templates take them, an object; OpenAI has it as a string of JSON, where none at all is an empty one.

    And how much of it there is, as in ToolCall.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return {}, 0
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_int=functools.partial(_whole, param))
        except ChatError:
            raise
        except (ValueError, RecursionError):
            raise ChatError("the arguments of a tool call must be a JSON object, this is no JSON", param) from None
    if not isinstance(value, dict):
        raise ChatError(f"the arguments of a tool call must be a JSON object, got {type_name(value)}", param)
    return value, measured(value, param, text)


def _whole(param: str, digits: str) -> int:
    """Reading takes time by the square of the digits."""
    if len(digits) > MAX_DIGITS:
        raise ChatError(TOO_LARGE, param)
    return int(digits)


def measured(value: Any, param: str, text: ReadText, depth: int = MAX_DEPTH) -> int:
    """How much of it there is, as in ToolCall; it can travel and be rendered.

    Raises ChatError where it is too deep or holds a number or a text that JSON has no bytes for.
    """
    if depth < 0:
        raise ChatError(f"lists and objects lie in each other more than {MAX_DEPTH} deep", param)
    if isinstance(value, str):
        return 1 + len(text(value, param))
    if isinstance(value, float) and not math.isfinite(value):
        raise ChatError("a number must be finite", param)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ChatError(TOO_LARGE, param)
    if isinstance(value, dict):
        inner = (len(text(key, param)) + measured(value[key], param, text, depth - 1) for key in value)
        return 1 + sum(inner)
    if isinstance(value, list):
        return 1 + sum(measured(inner, param, text, depth - 1) for inner in value)
    return 1
