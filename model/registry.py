"""Finds the family that serves an architecture, without importing torch."""

import importlib

from configs.checkpoint import Checkpoint, CheckpointError, shown
from configs.quantised import refuse_quantised
from model.family import Family

_FAMILIES = {  # the first entry of config.json's `architectures` -> the module that exports FAMILY
    "QWenLMHeadModel": "model.families.qwen_vl.family",
    "Qwen2VLForConditionalGeneration": "model.families.qwen2.qwen2_vl",
    "Qwen2_5_VLForConditionalGeneration": "model.families.qwen2.qwen2_5_vl",
    "Qwen2AudioForConditionalGeneration": "model.families.qwen2.qwen2_audio",
    "Qwen2_5OmniModel": "model.families.qwen2.qwen2_5_omni",
    "Qwen2_5OmniForConditionalGeneration": "model.families.qwen2.qwen2_5_omni",
    "Qwen2_5OmniThinkerForConditionalGeneration": "model.families.qwen2.qwen2_5_omni",
    "Qwen3VLForConditionalGeneration": "model.families.qwen3_vl.family",
    "LlavaForConditionalGeneration": "model.families.llava.family",
    "FuyuForCausalLM": "model.families.fuyu.family",
    "VipLlavaForConditionalGeneration": "model.families.llava.vip_llava",
    "InternVLChatModel": "model.families.internvl.family",
    "InternVLForConditionalGeneration": "model.families.internvl.family",
    "Mistral3ForConditionalGeneration": "model.families.mistral3.family",
}


def family_of(checkpoint: Checkpoint) -> Family:
    """Raises CheckpointError for an unknown architecture, naming what is supported, and for quantised weights."""
    module = _FAMILIES.get(checkpoint.architecture)
    if module is None:
        raise CheckpointError(
            f"config.json: architecture {shown(checkpoint.architecture)} is not supported "
            f"(supported: {', '.join(sorted(_FAMILIES))})"
        )
    refuse_quantised(checkpoint)
    family: Family = importlib.import_module(module).FAMILY
    return family


def families() -> list[tuple[Family, tuple[str, ...]]]:
    """Every family with its architectures, in the order of the registry; imports their packages, but no torch."""
    modules: dict[str, list[str]] = {}
    for architecture, module in _FAMILIES.items():
        modules.setdefault(module, []).append(architecture)
    return [(importlib.import_module(module).FAMILY, tuple(found)) for module, found in modules.items()]


def architectures() -> tuple[str, ...]:
    return tuple(sorted(_FAMILIES))
