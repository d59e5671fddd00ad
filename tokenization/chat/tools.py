"""Tool calls in histories: an assistant's calls and the tools' answers."""

import json
import math
from collections.abc import Callable
from typing import Any, Literal

from tokenization.chat.errors import ChatError, expect, type_name
from tokenization.chat.parts import Boxes, Chat, Media, Text, ToolCall

MAX_DEPTH = 32  # of lists and objects in a call's arguments, and in a tool
MAX_DIGITS = 640  # of a whole number in a text of JSON, as in a body: reading takes time by their square
MAX_CHARACTERS = 1 << 22  # of the arguments of all calls of a chat, while they are texts of JSON
MAX_MARKS = 1 << 18  # brackets, commas and colons in them

Numbers = Literal["any", "finite", "64 bits"]  # which are taken; whole ones of any size, but for the last
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
    number = None if call.get("id") is None else text(call["id"], f"{param}.id")
    return made_call(number, name, function.get("arguments"), param, f"{param}.function.arguments", text)


def made_call(number: str | None, name: str, given: Any, param: str, inside: str, text: ReadText) -> ToolCall:
    """A call with the arguments that stand at `inside`: an object, or any string. Raises ChatError.

    OpenAI has them as a string that the model wrote: JSON of an object, unless it was cut or the model was wrong. None
    at all is an empty object.
    """
    is_object, size = True, 0
    if given is None or (isinstance(given, str) and not given.strip()):
        given = "{}"
    elif isinstance(given, str):
        given = text(given, inside)
        found = _size_of_object(given, inside, text)
        is_object, size = found is not None, len(given) if found is None else found
    elif isinstance(given, dict):
        size = measured(given, inside, text, numbers="any")
        given = json.dumps(given, ensure_ascii=False)  # no message between processes has such numbers
    else:
        raise ChatError(f"the arguments of a tool call are a string or an object, got {type_name(given)}", inside)
    size += len(name) + len(number or "")
    return ToolCall(id=number, name=name, arguments=given, is_object=is_object, size=size, param=param)


def _size_of_object(written: str, param: str, text: ReadText) -> int | None:
    """As in ToolCall; None: it is no JSON object, or one that cannot be read and rendered as it stands."""
    try:
        value = json.loads(written, parse_int=_whole, parse_constant=_no_number)
        return measured(value, param, text, numbers="finite") if isinstance(value, dict) else None
    except (ChatError, ValueError, RecursionError):
        return None


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError
    return int(digits)


def _no_number(_: str) -> float:
    """NaN and Infinity are Python's words, not JSON's."""
    raise ValueError


def measured(value: Any, param: str, text: ReadText, depth: int = MAX_DEPTH, *, numbers: Numbers = "64 bits") -> int:
    """How much of it there is, as in ToolCall; it can be rendered.

    Raises ChatError where it is too deep or holds a number or a text that is not taken.
    """
    if depth < 0:
        raise ChatError(f"lists and objects lie in each other more than {MAX_DEPTH} deep", param)
    if isinstance(value, str):
        return 1 + len(text(value, param))
    if isinstance(value, float) and not math.isfinite(value) and numbers != "any":
        raise ChatError("a number must be finite", param)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        if numbers == "64 bits":
            raise ChatError("a whole number must fit into 64 bits", param)
        return 1 + value.bit_length() // 3  # its digits, and few more
    if isinstance(value, dict):
        inner = (len(text(key, param)) + measured(value[key], param, text, depth - 1, numbers=numbers) for key in value)
        return 1 + sum(inner)
    if isinstance(value, list):
        return 1 + sum(measured(inner, param, text, depth - 1, numbers=numbers) for inner in value)
    return 1
