"""Directories of large published models: their sizes in config.json, and no weights."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.layouts.directories import facts_of
from tests.tiny.internvl import write_internvl, write_published_internvl
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_vl import write_json
from tests.tiny.qwen3_vl import write_qwen3_vl

_QWEN3_TEXT = {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "num_hidden_layers": 64}
_INTERNVIT_6B = {
    "hidden_size": 3200, "intermediate_size": 12800, "num_attention_heads": 25, "num_hidden_layers": 45,
    "norm_type": "rms_norm", "qk_normalization": True, "qkv_bias": False, "image_size": 448, "patch_size": 14,
}  # fmt: skip
_QWEN2_5_32B = {
    "hidden_size": 5120, "intermediate_size": 27648, "num_attention_heads": 40, "num_hidden_layers": 64,
    "num_key_value_heads": 8,
}  # fmt: skip
_QWEN2_5_72B = {
    "hidden_size": 8192, "intermediate_size": 29568, "num_attention_heads": 64, "num_hidden_layers": 80,
    "num_key_value_heads": 8,
}  # fmt: skip


def _qwen2_5(model: str) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        return _with(write_qwen2_5_vl(path), facts_of(model)["files"]["config.json"])

    return write


def _qwen3(path: Path) -> Path:
    """As its smaller sister, but for the sizes of Qwen3-32B and of the tower that it shares with it."""
    config = facts_of("Qwen3-VL-8B-Thinking")["files"]["config.json"]
    config["text_config"] |= _QWEN3_TEXT
    config["vision_config"]["out_hidden_size"] = _QWEN3_TEXT["hidden_size"]
    return _with(write_qwen3_vl(path), config)


def _internvl(decoder: Mapping[str, int]) -> Callable[[Path], Path]:
    def write(path: Path) -> Path:
        write_published_internvl(path, write_internvl(path / "twin"))
        config = json.loads((path / "config.json").read_text())
        config["llm_config"] |= {**decoder, "vocab_size": 151674}
        config["vision_config"] |= _INTERNVIT_6B
        return _with(path, {**config, "force_image_size": 448})

    return write


def _with(path: Path, config: Mapping[str, Any]) -> Path:
    write_json(path / "config.json", dict(config))
    return path


MODELS: Mapping[str, Callable[[Path], Path]] = {
    "Qwen2.5-VL-32B": _qwen2_5("Qwen2.5-VL-32B-Instruct"),
    "Qwen2.5-VL-72B": _qwen2_5("Qwen2.5-VL-72B-Instruct"),
    "Qwen3-VL-32B": _qwen3,
    "InternVL3-38B": _internvl(_QWEN2_5_32B),
    "InternVL3-78B": _internvl(_QWEN2_5_72B),
}
