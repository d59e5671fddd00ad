"""The fields of a request that say how its chat is rendered: prompt ending, template variables, media options."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import msgspec

from tokenization.chat.errors import ChatError, shortened, type_name
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat, Media, Turn

GENERATION, CONTINUE = "add_generation_prompt", "continue_final_message"
VARIABLES, MEDIA = "chat_template_kwargs", "mm_processor_kwargs"

MAX_DEPTH = 8
MAX_BYTES = 16384  # of the variables as JSON
# What a template is given by us, what transformers takes under the same roof, and what belongs to Jinja itself.
RESERVED = frozenset({
    "messages", "conversation", "tools", "documents", GENERATION, CONTINUE, "tokenize", "chat_template",
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token",
    "additional_special_tokens", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs", "raise_exception", "strftime_now", "range", "dict", "lipsum",
    "cycler", "joiner", "namespace", "self", "super", "caller", "varargs", "kwargs", "loop",
})  # fmt: skip
_OPTIONS = ("min_pixels", "max_pixels", "total_pixels", "fps", "num_frames", "use_audio_in_video")
_EDGES = {"shortest_edge": "min_pixels", "longest_edge": "max_pixels"}


def with_rendering(chat: Chat, body: Mapping[str, Any]) -> Chat:
    """The chat with what the four fields of a request's body say of it. Raises ChatError, naming the field."""
    continues = _flag(body, CONTINUE)
    opens = _flag(body, GENERATION)
    if continues and opens:
        raise ChatError(
            f"{CONTINUE} and {GENERATION} cannot both be true: a prompt ends inside an answer or before one", CONTINUE
        )
    last = chat.turns[-1]
    if continues and (last.role != "assistant" or not last.parts):
        raise ChatError(f"{CONTINUE} needs an assistant's message with a text as the last one", CONTINUE)
    options = _media_options(body.get(MEDIA))
    return msgspec.structs.replace(
        chat,
        turns=chat.turns if options == MediaOptions() else tuple(_with_options(turn, options) for turn in chat.turns),
        add_generation_prompt=not continues if opens is None else opens,
        continue_final_message=bool(continues),
        template_kwargs=_variables(body.get(VARIABLES)),
        media_options=options,
    )


def refuse_special(variables: Mapping[str, Any], special: Collection[str]) -> None:
    """Raise ChatError where a text could become a special token in the prompt, by itself or beside another text.

    A template may write its variables anywhere, and nothing tells there that a client wrote them.
    """
    if not variables:
        return
    heads = tuple(token[:n] for token in special for n in range(1, len(token)))
    tails = tuple(token[n:] for token in special for n in range(1, len(token)))
    for text in _texts(variables):
        if text.endswith(heads) or text.startswith(tails) or any(token in text for token in special):
            raise ChatError(
                f"{VARIABLES}: a text must not hold a special token of the model, end with the beginning of one or "
                "begin with the end of one",
                VARIABLES,
            )


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ChatError(f"{name}: expected true or false, got {type_name(value)}", name)
    return value


# ---- variables of the template


def _variables(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ChatError(f"{VARIABLES}: expected an object, got {type_name(value)}", VARIABLES)
    for name in value:
        param = f"{VARIABLES}.{shortened(name)}"
        if name in RESERVED or name.startswith("_"):
            raise ChatError(f"{param}: the name is reserved; the server itself gives it to the template", param)
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
            raise ChatError(f"{param}: no template can read a variable of this name", param)
        _check_value(value[name], param, 1)
    size = sum(map(len, _texts(value)))  # before it is written in one call
    size = size if size > MAX_BYTES else len(msgspec.json.encode(value))
    if size > MAX_BYTES:
        raise ChatError(f"{VARIABLES}: {size} bytes as JSON; at most {MAX_BYTES} are taken", VARIABLES)
    return value


def _check_value(value: Any, param: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise ChatError(f"{param}: lists and objects lie in each other more than {MAX_DEPTH} deep", param)
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
        raise ChatError(f"{param}: a whole number must fit into 64 bits", param)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        _check_value(one, param, depth + 1)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


# ---- options of all media


def _media_options(value: Any) -> MediaOptions:
    """vLLM's names: those that stand beside a medium, and `size` with the two bounds by their names in a checkpoint."""
    if value is None:
        return MediaOptions()
    if not isinstance(value, dict):
        raise ChatError(f"{MEDIA}: expected an object, got {type_name(value)}", MEDIA)
    found: dict[str, Any] = {}
    for key, option in value.items():
        if key == "size":
            found |= _edges(option)
        elif key not in _OPTIONS:
            param = f"{MEDIA}.{shortened(key)}"
            raise ChatError(f"{param}: not known here (known: {', '.join(_OPTIONS)}, size)", param)
    found |= {key: option for key, option in value.items() if key != "size" and option is not None}
    try:
        return MediaOptions.read(found)
    except ChatError as error:
        param = f"{MEDIA}.{error.param}" if error.param else MEDIA
        raise ChatError(f"{param}: {error.message}", param) from None


def _with_options(turn: Turn, options: MediaOptions) -> Turn:
    """Its media with these options where they do not say their own."""
    parts = tuple(
        msgspec.structs.replace(part, options=part.options.over(options, part.kind))
        if isinstance(part, Media)
        else part
        for part in turn.parts
    )
    return msgspec.structs.replace(turn, parts=parts)


def _edges(value: Any) -> dict[str, Any]:
    param = f"{MEDIA}.size"
    if value is None:
        return {}
    if not isinstance(value, dict) or not value.keys() <= _EDGES.keys():
        raise ChatError(f"{param}: expected an object with shortest_edge or longest_edge", param)
    return {_EDGES[key]: edge for key, edge in value.items()}
