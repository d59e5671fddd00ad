"""A tiny checkpoint of every family of the registry: a family that is added gets its line here, for shared tests."""

from collections.abc import Callable
from pathlib import Path

from model.registry import families
from tests.tiny.fuyu import write_fuyu
from tests.tiny.internvl import write_internvl
from tests.tiny.llava import write_llava
from tests.tiny.mistral3 import write_mistral3
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_qwen2_vl
from tests.tiny.qwen3_vl import write_qwen3_vl
from tests.tiny.qwen_vl import write_qwen_vl
from tests.tiny.vip_llava import write_vip_llava

NAMES = tuple(family.name for family, _ in families())  # what tests of every family are parametrised by


def write_qwen(path: Path) -> Path:
    return write_qwen_vl(path, ["Hello", " there"])


WRITERS: dict[str, Callable[..., Path]] = {
    "qwen_vl": write_qwen,
    "qwen2_vl": write_qwen2_vl,
    "qwen2_5_vl": write_qwen2_5_vl,
    "qwen2_audio": write_qwen2_audio,
    "qwen2_5_omni": write_qwen2_5_omni,
    "qwen3_vl": write_qwen3_vl,
    "llava": write_llava,
    "fuyu": write_fuyu,
    "vip_llava": write_vip_llava,
    "internvl": write_internvl,
    "mistral3": write_mistral3,
}
