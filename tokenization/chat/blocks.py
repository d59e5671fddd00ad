"""Anthropic's messages, which consist of blocks, become a Chat."""

from collections.abc import Iterator, Mapping
from typing import Any

from tokenization.chat.dialects import Part, read_data, read_source, read_text
from tokenization.chat.errors import ChatError, expect, listed, shortened, type_name
from tokenization.chat.parts import Chat, Media, Text, ToolCall, Turn
from tokenization.chat.tools import made_call

PICTURES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_BLOCKS: Mapping[str, tuple[str, ...]] = {  # by who speaks
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "thinking", "tool_use"),
    "system": ("text",),
}
_RESULTS = ("text", "image")


def chat_from_blocks(messages: Any, system: Any) -> Chat:
    """`system` stands in front; a result of a tool becomes a turn of its own. An answer goes on with the last message
    where that is the assistant's, and calls nothing.

    Raises ChatError with the field's path, as in `messages[1].content[3].source.data`.
    """
    turns: list[Turn] = []
    if system is not None:
        turns.append(_system(system, "system", "system"))
    if not expect(messages, list, "a list", "messages"):
        raise ChatError("at least one message is needed", "messages")
    for i, message in enumerate(messages):
        turns += _turns(message, f"messages[{i}]")
    last = turns[-1]
    continues = last.role == "assistant" and bool(last.parts) and not last.tool_calls
    return Chat(turns=tuple(turns), add_generation_prompt=not continues, continue_final_message=continues)


def _turns(message: Any, param: str) -> Iterator[Turn]:
    message = expect(message, dict, "an object with 'role' and 'content'", param)
    role, content, inside = message.get("role"), message.get("content"), f"{param}.content"
    if role == "system":
        yield _system(content, inside, param)
    elif role == "user":
        yield from _user(content, inside, param)
    elif role == "assistant":
        yield _assistant(content, inside, param)
    else:
        shown = f"'{shortened(role)}'" if isinstance(role, str) else type_name(role)
        raise ChatError(f"the role is one of {listed(_BLOCKS)}, got {shown}", f"{param}.role")


def _system(content: Any, inside: str, param: str) -> Turn:
    """Its texts become one, as templates expect it."""
    if not isinstance(content, str):
        content = "\n".join(read_text(block.get("text"), f"{at}.text") for block, at in _blocks(content, inside))
    return Turn(role="system", parts=(Text(text=read_text(content, inside)),), plain=True, param=param)


def _user(content: Any, inside: str, param: str) -> Iterator[Turn]:
    """What stands between the results of tools, and these, in their order."""
    if isinstance(content, str):
        yield Turn(role="user", parts=(Text(text=read_text(content, inside)),), plain=True, param=param)
        return
    parts: list[Part] = []
    for block, at in _blocks(content, inside, "user"):
        if block["type"] != "tool_result":
            parts.append(_part(block, at))
            continue
        if parts:
            yield Turn(role="user", parts=tuple(parts), plain=False, param=param)
            parts = []
        yield _result(block, at)
    if parts:
        yield Turn(role="user", parts=tuple(parts), plain=False, param=param)


def _result(block: dict[str, Any], param: str) -> Turn:
    """Its texts become one where there is nothing else, as templates expect a tool's answer."""
    number, content, inside = (
        read_text(block.get("tool_use_id"), f"{param}.tool_use_id"),
        block.get("content"),
        f"{param}.content",
    )
    if block.get("is_error") is not None:
        expect(block["is_error"], bool, "true or false", f"{param}.is_error")
    parts: tuple[Part, ...] = ()
    if isinstance(content, str):
        parts = (Text(text=read_text(content, inside)),)
    elif content:
        parts = tuple(_part(one, at) for one, at in _blocks(content, inside, known=_RESULTS))
    elif content is not None:
        expect(content, list, "a string or a list of blocks", inside)
    plain = all(isinstance(part, Text) for part in parts)
    if plain and parts:
        parts = (Text(text="\n".join(part.text for part in parts if isinstance(part, Text))),)
    return Turn(role="tool", parts=parts, plain=plain, tool_call_id=number, param=param)


def _assistant(content: Any, inside: str, param: str) -> Turn:
    if isinstance(content, str):
        return Turn(role="assistant", parts=(Text(text=read_text(content, inside)),), plain=True, param=param)
    parts: list[Part] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    # An answer of ours without a word or a whole name of a call has no block, and is taken back.
    for block, at in () if content == [] else _blocks(content, inside, "assistant"):
        if block["type"] == "text":
            parts.append(_part(block, at))
        elif block["type"] == "thinking":
            thoughts.append(read_text(block.get("thinking"), f"{at}.thinking"))
        else:
            calls.append(_call(block, at))
    reasoning = read_text("".join(thoughts), inside) if thoughts else None
    return Turn(
        role="assistant", parts=tuple(parts), plain=not parts, tool_calls=tuple(calls), reasoning=reasoning, param=param
    )


def _call(block: dict[str, Any], param: str) -> ToolCall:
    number, name = (read_text(block.get(key), f"{param}.{key}") for key in ("id", "name"))
    if not name.strip():
        raise ChatError("the name of a tool is needed", f"{param}.name")
    given = expect(block.get("input"), dict, "an object", f"{param}.input")
    return made_call(number, name, given, param, f"{param}.input", read_text)


def _blocks(
    content: Any, param: str, role: str = "system", known: tuple[str, ...] = ()
) -> Iterator[tuple[dict[str, Any], str]]:
    """Each with its path; of one of the types `known`, or else of those that `role` may hold."""
    known = known or _BLOCKS[role]
    if not expect(content, list, "a string or a list of blocks", param):
        raise ChatError("at least one block is needed", param)
    for i, block in enumerate(content):
        at = f"{param}[{i}]"
        kind = expect(block, dict, "an object with a 'type'", at).get("type")
        if kind not in known:
            shown = f"'{shortened(kind)}'" if isinstance(kind, str) else type_name(kind)
            raise ChatError(f"the type of a block is one of {listed(known)} here, got {shown}", f"{at}.type")
        yield block, at


def _part(block: dict[str, Any], param: str) -> Part:
    if block["type"] == "text":
        return Text(text=read_text(block.get("text"), f"{param}.text"))
    if block.get("transformations"):
        raise ChatError("not supported; leave it out", f"{param}.transformations", "unsupported_parameter")
    source, at = expect(block.get("source"), dict, "an object with a 'type'", f"{param}.source"), f"{param}.source"
    kind = source.get("type")
    if kind == "url":
        return Media(kind="image", source=read_source(source.get("url"), f"{at}.url"), param=param)
    if kind != "base64":
        shown = f"'{shortened(kind)}'" if isinstance(kind, str) else type_name(kind)
        raise ChatError(f"the type of a source is 'base64' or 'url', got {shown}", f"{at}.type")
    media_type = source.get("media_type")
    if media_type not in PICTURES:
        raise ChatError(f"the media_type is one of {listed(PICTURES)}", f"{at}.media_type")
    return Media(kind="image", source=read_data(source.get("data"), media_type, f"{at}.data"), param=param)
