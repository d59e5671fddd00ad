"""The fields of a request that say how its chat is rendered: prompt ending, template variables, media options."""

from collections.abc import Mapping
from typing import Any

import msgspec

from tokenization.chat.errors import ChatError, shortened, type_name
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat, Media, Turn
from tokenization.chat.template_variables import VARIABLES, read_variables

GENERATION, CONTINUE = "add_generation_prompt", "continue_final_message"
MEDIA = "mm_processor_kwargs"

_OPTIONS = ("min_pixels", "max_pixels", "total_pixels", "fps", "num_frames", "use_audio_in_video", "max_dynamic_patch")
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
        template_kwargs=read_variables(body.get(VARIABLES)),
        media_options=options,
    )


def _flag(body: Mapping[str, Any], name: str) -> bool | None:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise ChatError(f"{name}: expected true or false, got {type_name(value)}", name)
    return value


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
    own = {key: option for key, option in value.items() if key != "size" and option is not None}
    try:
        return MediaOptions.read({**found, **own}, MEDIA)
    except ChatError as error:
        param, message = error.param or MEDIA, error.message
        for edge, key in _EDGES.items():
            if key in found and key not in own:
                param = f"{MEDIA}.size.{edge}" if param == f"{MEDIA}.{key}" else param
                message = message.replace(key, edge)
        raise ChatError(f"{param}: {message}", param) from None


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
