"""A tiny checkpoint of every family, and what is asked of it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from model.engine.messages import SamplingParams
from tests.model.engine.engine_harness import clip, data_url, picture
from tests.npu.wheel.twins import Request
from tests.parity.golden_qwen_vl import checkpoint_with
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import film, tone
from tests.tiny.fuyu import write_fuyu
from tests.tiny.internvl import write_internvl
from tests.tiny.llava import write_llava
from tests.tiny.mistral3 import write_mistral3
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tiny.qwen3_vl import write_qwen3_vl
from tests.tiny.vip_llava import write_vip_llava
from tests.tokenization.worker_harness import url
from tokenization.chat.parts import Media

GREEDY = SamplingParams(max_tokens=5, temperature=0.0, seed=0, logprobs=True, top_logprobs=3)
DRAWN = msgspec.structs.replace(GREEDY, temperature=0.9, top_p=0.8, seed=7, repetition_penalty=1.2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    write: Callable[[Path], Path]
    media: tuple[str, ...]  # kinds


FAMILIES = {
    "qwen_vl": Family(write=checkpoint_with, media=("image",)),
    "qwen2_vl": Family(write=write_qwen2_vl, media=("image", "video")),
    "qwen2_5_vl": Family(write=write_qwen2_5_vl, media=("image", "video")),
    "qwen2_audio": Family(write=write_qwen2_audio, media=("audio",)),
    "qwen2_5_omni": Family(write=write_qwen2_5_omni, media=("image", "video", "audio")),
    "qwen3_vl": Family(write=write_qwen3_vl, media=("image", "video")),
    "llava": Family(write=write_llava, media=("image",)),
    "fuyu": Family(write=write_fuyu, media=("image",)),
    "vip_llava": Family(write=write_vip_llava, media=("image",)),
    "internvl": Family(write=write_internvl, media=("image", "video")),
    "mistral3": Family(write=write_mistral3, media=("image",)),
}


def requests_for(family: Family) -> dict[str, Request]:
    """Text first; then each kind of medium, by the best and by chance; then all kinds in one message."""
    media = {kind: _medium(kind) for kind in family.media}
    found = {"text": Request(parts=["what is it, and where does it go?"], sampling=GREEDY)}
    for kind, one in media.items():
        found[kind] = Request(parts=["look: ", one, "and say what it is"], sampling=GREEDY)
        found[f"{kind}-drawn"] = Request(parts=[one, "again"], sampling=DRAWN)
    found["all"] = Request(parts=[*media.values(), "together"], sampling=GREEDY)
    return found


def several_media(family: Family) -> list[Media]:
    """Three of the family's first kind, which differ."""
    return [_medium(family.media[0], i) for i in range(3)]


def _medium(kind: str, i: int = 0) -> Media:
    if kind == "audio":
        return Media(kind="audio", source=url(make_wav(tone(8000 + 4000 * i, 3))), param="")
    if kind == "video":
        return clip(film(2, sound=None), max_pixels=3136 * 4)
    return Media(kind="image", source=data_url(picture(140 + 56 * i, 112, 5 + i)), param="")
