"""Native lists and OpenAI messages become a Chat."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from configs.nearest import did_you_mean
from tokenization.chat.boxes import FULL
from tokenization.chat.combining_marks import refuse_long_runs
from tokenization.chat.errors import ChatError, expect, listed, refuse_other_keys, shortened, type_name
from tokenization.chat.options import KEYS, MediaOptions
from tokenization.chat.parts import Boxes, Chat, Kind, Media, Text, Turn
from tokenization.chat.tool_offer import FIELDS, ToolOffer, read_offer
from tokenization.chat.tools import check_arguments, read_tool_calls, tools_answer

Role = Literal["system", "user", "assistant", "tool"]
Part = Text | Media | Boxes

_KINDS: Mapping[str, Kind] = {"image": "image", "video": "video", "audio": "audio"}
_CONTENT = ("text", *_KINDS, "box")  # of a native part: one of these
_ROLES: Mapping[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool",
}  # fmt: skip
# Fields of a message that would change the prompt; others that are not read change nothing.
_NOT_SUPPORTED: Mapping[str, str] = {
    "function_call": "not supported; give the call in tool_calls",
    "audio": "an earlier answer's sound cannot be referred to; give its words in content",
    "prefix": "not supported; continue_final_message beside messages continues the last one",
    "partial": "not supported; continue_final_message beside messages continues the last one",
}
_OPTIONS = frozenset(key for keys in KEYS.values() for key in keys)
_URL_TYPES: Mapping[str, Kind] = {"image_url": "image", "video_url": "video", "audio_url": "audio"}
_SOUNDS = ("wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "webm")  # names only: the file's own header decides


def chat_from_native(body: dict[str, Any] | list[Any]) -> Chat:
    """An object with `inputs`, `history` (objects with `inputs` and `text`) and `system`, or a list of inputs.

    Before inputs, or instead of them, stand `tool_results`; beside an answer's text, or instead of it, `tool_calls`;
    and its `reasoning`.
    Other keys are ignored. Raises ChatError with the path of the offending field, as in `history[0].inputs[1]`.
    """
    if isinstance(body, list):
        body = {"inputs": body}
    body = expect(body, dict, "an object with 'inputs' or a list of inputs", "inputs")
    turns: list[Turn] = []
    system = body.get("system")
    if system is not None:
        turns.append(_plain_turn("system", system, "system"))
    history = [] if body.get("history") is None else expect(body["history"], list, "a list", "history")
    check_arguments(history, "history")
    for i, entry in enumerate(history):
        turns.extend(_history_entry(entry, f"history[{i}]"))
    turns.extend(_asked(body, ""))
    return Chat(turns=tuple(turns))


def chat_from_openai(messages: list[Any]) -> Chat:
    """`developer` is read as `system`; keys that change nothing are ignored.

    Raises ChatError with the field's path, as in `messages[1].content[3]`.
    """
    if not expect(messages, list, "a list", "messages"):
        raise ChatError("at least one message is needed", "messages")
    check_arguments(messages, "messages")
    return Chat(turns=tuple(_openai_turn(message, f"messages[{i}]") for i, message in enumerate(messages)))


def with_tools(chat: Chat, body: Mapping[str, Any]) -> tuple[Chat, ToolOffer | None]:
    """The chat with the tools of a body, in either dialect, and what of them may be called. Raises ChatError."""
    if body.keys().isdisjoint(FIELDS):
        return chat, None
    tools, offer, left_out = read_offer(body, read_text)
    return msgspec.structs.replace(chat, tools=tools, left_out=left_out), offer


# ---- native


def _history_entry(entry: Any, param: str) -> Iterator[Turn]:
    entry = expect(entry, dict, "an object with 'inputs' and 'text'", param)
    refuse_other_keys(entry, ("inputs", "tool_results", "text", "tool_calls", "reasoning"), param)
    calls = read_tool_calls(entry.get("tool_calls"), "assistant", f"{param}.tool_calls", read_text)
    if "text" not in entry and not calls:
        raise ChatError("'text', the assistant's answer to these inputs, is missing", f"{param}.text")
    yield from _asked(entry, f"{param}.")
    only_calls = calls and entry.get("text") in (None, "")  # as /chat tells such an answer
    parts = () if only_calls else (Text(text=read_text(entry["text"], f"{param}.text")),)
    yield Turn(
        role="assistant", parts=parts, plain=True, tool_calls=calls, reasoning=_thoughts(entry, param),
        param=f"{param}.text",
    )  # fmt: skip


def _asked(entry: dict[str, Any], prefix: str) -> Iterator[Turn]:
    """What an answer follows: results of tools, then a user's inputs; the latter may be left out behind results."""
    results = entry.get("tool_results")
    for i, result in enumerate([] if results is None else expect(results, list, "a list", f"{prefix}tool_results")):
        yield _result_turn(result, f"{prefix}tool_results[{i}]")
    if not results or entry.get("inputs") is not None:
        parts = _native_parts(entry.get("inputs"), f"{prefix}inputs")
        yield Turn(role="user", parts=parts, plain=False, param=f"{prefix}inputs")


def _result_turn(result: Any, param: str) -> Turn:
    result = expect(result, dict, "an object with 'tool_call_id' and 'inputs'", param)
    refuse_other_keys(result, ("tool_call_id", "inputs"), param)
    parts, plain = tools_answer(_native_parts(result.get("inputs"), f"{param}.inputs"))
    number = _text_or_none(result, "tool_call_id", param)
    return Turn(role="tool", parts=parts, plain=plain, tool_call_id=number, param=param)


def _native_parts(inputs: Any, param: str) -> tuple[Part, ...]:
    if not expect(inputs, list, "a list of parts", param):
        raise ChatError("at least one part is needed", param)
    return tuple(_native_part(part, f"{param}[{i}]") for i, part in enumerate(inputs))


def _native_part(part: Any, param: str) -> Part:
    part = expect(part, dict, 'an object such as {"text": "..."}', param)
    content = sorted(part.keys() & {*_CONTENT})
    if not content:
        named = ", ".join(f"'{shortened(str(key))}'" for key in list(part)[:3]) or "no key"
        meant = "".join(did_you_mean(str(key), _CONTENT) for key in list(part)[:1])
        raise ChatError(
            f"unknown part ({named}): a part holds one of 'text', 'image', 'video', 'audio', 'box'{meant}", param
        )
    if len(content) > 1:
        raise ChatError(f"a part holds one of text, media or boxes, this one holds {listed(content)}", param)
    key = content[0]
    if key == "box":
        return _boxes(part, param)
    if key == "text":
        refuse_other_keys(part, (key,), param)
        return Text(text=read_text(part["text"], f"{param}.text"))
    kind, value_param = _KINDS[key], f"{param}.{key}"
    refuse_other_keys(part, (key, *KEYS[kind]), param)
    source, frames = _sources(kind, part[key], value_param)
    return Media(kind=kind, source=source, frames=frames, param=value_param, options=MediaOptions.read(part, param))


def _boxes(part: dict[str, Any], param: str) -> Boxes:
    """{"box": [[x1, y1, x2, y2], ...], "ref": "words"}; numbers are truncated to whole ones."""
    refuse_other_keys(part, ("box", "ref"), param)
    boxes, value_param = part["box"], f"{param}.box"
    if not isinstance(boxes, list) or not boxes:
        raise ChatError(f"expected a list of boxes, [[x1, y1, x2, y2], ...], got {type_name(boxes)}", value_param)
    if not isinstance(boxes[0], list):
        raise ChatError("this is one flat box; a list of boxes is needed, [[x1, y1, x2, y2]]", value_param)
    for i, box in enumerate(boxes):
        if not isinstance(box, list) or len(box) != 4 or not all(map(_is_coordinate, box)):
            raise ChatError(f"a box is four numbers from 0 to {FULL}, [x1, y1, x2, y2]", f"{value_param}[{i}]")
    ref = None if part.get("ref") is None else read_text(part["ref"], f"{param}.ref")
    return Boxes(boxes=tuple((int(a), int(b), int(c), int(d)) for a, b, c, d in boxes), ref=ref, param=value_param)


def _is_coordinate(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= FULL


# ---- OpenAI


def _openai_turn(message: Any, param: str) -> Turn:
    message = expect(message, dict, "an object with 'role' and 'content'", param)
    name = message.get("role")
    if not isinstance(name, str) or name not in _ROLES:
        shown = f"'{shortened(name)}'" if isinstance(name, str) else type_name(name)
        raise ChatError(f"the role is one of {listed(_ROLES)}, got {shown}", f"{param}.role")
    role = _ROLES[name]
    for key, why in _NOT_SUPPORTED.items():
        if message.get(key):
            raise ChatError(f"{key}: {why}", f"{param}.{key}", "unsupported_parameter")
    parts, plain = _openai_content(message.get("content"), role, f"{param}.content")
    return Turn(
        role=role,
        parts=parts,
        plain=plain,
        name=_text_or_none(message, "name", param),
        tool_calls=read_tool_calls(message.get("tool_calls"), role, f"{param}.tool_calls", read_text),
        tool_call_id=_text_or_none(message, "tool_call_id", param) if role == "tool" else None,
        reasoning=_thoughts(message, param) if role == "assistant" else None,
        param=param,
    )


def _thoughts(message: dict[str, Any], param: str) -> str | None:
    """Of an earlier answer, by the newer of two names where both say something."""
    key = "reasoning" if message.get("reasoning") is not None else "reasoning_content"
    if message.get(key) == "" and message.get("reasoning_content") is not None:
        key = "reasoning_content"
    return None if message.get(key) is None else read_text(message[key], f"{param}.{key}")


def _openai_content(content: Any, role: Role, param: str) -> tuple[tuple[Part, ...], bool]:
    """The parts, and whether they are one string."""
    if isinstance(content, str):
        return (Text(text=read_text(content, param)),), True
    if content is None and role in ("assistant", "tool"):
        return (), True
    if not expect(content, list, "a string or a list of parts", param):
        raise ChatError("at least one part is needed", param)
    parts = tuple(_openai_part(part, f"{param}[{i}]") for i, part in enumerate(content))
    return tools_answer(parts) if role == "tool" else (parts, False)


def _openai_part(part: Any, param: str) -> Part:
    part = expect(part, dict, "an object with a 'type'", param)
    readers: Mapping[str, Callable[[dict[str, Any], str], Part]] = {
        "text": _openai_text,
        "refusal": _openai_text,
        "input_audio": _openai_input_audio,
        **dict.fromkeys(_URL_TYPES, _openai_url),
    }
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in readers:
        shown = f"'{shortened(kind)}'" if isinstance(kind, str) else type_name(kind)
        raise ChatError(f"the type of a part is one of {listed(readers)}, got {shown}", param)
    others = [key for key in part if key in readers and key != kind and part[key] is not None]
    if others:
        raise ChatError(f"a part holds one of text or media, this one holds {listed([kind, *others])}", param)
    _refuse_options(part, (), param, f"beside 'url' in '{kind}'" if kind in _URL_TYPES else "with a picture or a video")
    if kind not in part:
        raise ChatError(f"'{kind}' is missing", param)
    return readers[kind](part, param)


def _openai_text(part: dict[str, Any], param: str) -> Text:
    kind = part["type"]
    return Text(text=read_text(part[kind], f"{param}.{kind}"))


def _openai_url(part: dict[str, Any], param: str) -> Media:
    kind = _URL_TYPES[part["type"]]
    value, value_param = part[part["type"]], f"{param}.{part['type']}"
    options = MediaOptions()
    if isinstance(value, dict):
        _refuse_options(value, KEYS[kind], value_param, "with another kind of medium")
        options = MediaOptions.read(value, value_param)
        value, value_param = value.get("url"), f"{value_param}.url"
    source, frames = _sources(kind, value, value_param)
    return Media(kind=kind, source=source, frames=frames, param=param, options=options)


def _openai_input_audio(part: dict[str, Any], param: str) -> Media:
    value, value_param = part["input_audio"], f"{param}.input_audio"
    value = expect(value, dict, "an object with 'data' and 'format'", value_param)
    if value.get("format") not in _SOUNDS:
        raise ChatError(f"the format is one of {listed(_SOUNDS)}", f"{value_param}.format")
    source = read_data(value.get("data"), f"audio/{value['format']}", f"{value_param}.data")
    return Media(kind="audio", source=source, param=param)


# ---- both


def _plain_turn(role: Role, text: Any, param: str) -> Turn:
    return Turn(role=role, parts=(Text(text=read_text(text, param)),), plain=True, param=param)


def read_text(value: Any, param: str) -> str:
    """A text of the client's that consists of characters. Raises ChatError."""
    text = expect(value, str, "a string", param)
    if text.isascii():  # known without a look at its characters, which may be 64 MiB of a picture
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ChatError("the text holds half of a surrogate pair, which is no character", param) from None
    refuse_long_runs(text, param)
    return text


def _sources(kind: Kind, value: Any, param: str) -> tuple[str, tuple[str, ...]]:
    """(source, ()), or ("", sources of the frames) of a video that is a list of pictures."""
    if kind == "video" and isinstance(value, list):
        if not value:
            raise ChatError("at least one frame is needed", param)
        return "", tuple(_sources("image", frame, f"{param}[{i}]")[0] for i, frame in enumerate(value))
    return read_source(value, param), ()


def read_source(value: Any, param: str) -> str:
    """Of one medium, as the client wrote it. Raises ChatError."""
    source = read_text(value, param)
    if not source:
        raise ChatError("a path or a data: URL is needed, got an empty string", param)
    return source


def read_data(value: Any, media_type: str, param: str) -> str:
    """The base64 of one medium as a data: URL, which some clients send in its place. Raises ChatError."""
    source = read_source(value, param)
    return source if source[:5].lower() == "data:" else f"data:{media_type};base64,{source}"


def _refuse_options(value: dict[str, Any], known: tuple[str, ...], param: str, place: str) -> None:
    """An option of media that would not be heeded is a mistake; whatever else is not known changes nothing."""
    for key in value:
        if key in _OPTIONS and key not in known and value[key] is not None:
            raise ChatError(f"'{key}' has no effect here; it stands {place}", f"{param}.{key}")


def _text_or_none(message: dict[str, Any], key: str, param: str) -> str | None:
    value = message.get(key)
    return None if value is None or value == "" else read_text(value, f"{param}.{key}")
