"""Random weights for a directory of config.json: names as on the hub, shapes as transformers builds the model."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from tests.tiny.random_weights import random_tensors

# By model_type: prefix of transformers 5 -> prefix on the hub. The first that fits is taken.
HUB_PREFIXES: Mapping[str, Mapping[str, str]] = {
    "qwen2_vl": {"model.visual.": "visual.", "model.language_model.": "model."},
    "qwen2_5_vl": {"model.visual.": "visual.", "model.language_model.": "model."},
    "qwen3_vl": {},
    "qwen2_audio": {
        "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "model.audio_tower.": "audio_tower.", "model.multi_modal_projector.": "multi_modal_projector.",
    },
    "llava": {
        "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.vision_model.", "model.multi_modal_projector.": "multi_modal_projector.",
    },
    "vipllava": {
        "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.vision_model.", "model.multi_modal_projector.": "multi_modal_projector.",
    },
    "mistral3": {
        "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "model.vision_tower.": "vision_tower.", "model.multi_modal_projector.": "multi_modal_projector.",
    },
    "qwen2_5_omni": {
        "model.language_model.": "thinker.model.", "model.visual.": "thinker.visual.",
        "model.audio_tower.": "thinker.audio_tower.", "lm_head.": "thinker.lm_head.",
    },
    "fuyu": {
        "model.language_model.": "language_model.model.", "lm_head.": "language_model.lm_head.",
        "model.vision_embed_tokens.": "vision_embed_tokens.",
    },
}  # fmt: skip
# What speaks: some tensors of it, which nobody reads.
SPOKEN = {
    "talker.codec_head.weight": (3, 5), "talker.model.layers.0.mlp.up_proj.weight": (3, 5),
    "token2wav.code2wav_dit_model.norm_out.linear.bias": (4,),
}  # fmt: skip


def hub_tensors(path: Path) -> dict[str, np.ndarray]:
    """float32 by name on the hub, for the config.json under `path`. The same for the same file."""
    return dict(_drawn((path / "config.json").read_text(encoding="utf-8")))


@lru_cache(maxsize=1)  # the layouts of one model are written one after the other
def _drawn(written: str) -> dict[str, np.ndarray]:
    from transformers import AutoConfig

    with TemporaryDirectory() as alone:
        (Path(alone) / "config.json").write_text(written, encoding="utf-8")
        config = AutoConfig.from_pretrained(alone)
    kind, own = reference_class(config)
    tensors = random_tensors(kind, own, HUB_PREFIXES[config.model_type])
    if config.model_type == "qwen2_5_omni":
        tensors |= {name: np.zeros(shape, np.float32) for name, shape in SPOKEN.items()}
    return tensors


def write_shards(path: Path, tensors: Mapping[str, np.ndarray], n: int) -> None:
    """model.safetensors, or `n` shards and their index."""
    if n == 1:
        save_file(dict(tensors), path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for i in range(n):
        file = f"model-{i + 1:05d}-of-{n:05d}.safetensors"
        part = names[i * len(names) // n : (i + 1) * len(names) // n]
        save_file({name: tensors[name] for name in part}, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))


def reference_class(config: Any) -> tuple[Any, Any]:
    """transformers' class for a configuration, and the configuration that it takes: of Omni the thinker's."""
    import transformers

    if config.model_type == "qwen2_5_omni":
        return transformers.Qwen2_5OmniThinkerForConditionalGeneration, config.thinker_config
    names = {
        "qwen2_vl": "Qwen2VLForConditionalGeneration", "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
        "qwen3_vl": "Qwen3VLForConditionalGeneration",
        "qwen2_audio": "Qwen2AudioForConditionalGeneration", "llava": "LlavaForConditionalGeneration",
        "fuyu": "FuyuForCausalLM", "vipllava": "VipLlavaForConditionalGeneration",
        "mistral3": "Mistral3ForConditionalGeneration",
    }  # fmt: skip
    return getattr(transformers, names[config.model_type]), config
