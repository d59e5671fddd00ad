"""Qwen-VL and Qwen-VL-Chat as published, at the width of the golden checkpoint: its weights, split as on the hub."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from tests.layouts.directories import MOST_SHARDS, facts_of
from tests.parity.golden_qwen_vl import CKPT, read_json

# Keys of config.json that are sizes or ids: the golden checkpoint's own. All others are the published ones.
_SIZES = ("hidden_size", "intermediate_size", "kv_channels", "num_attention_heads", "num_hidden_layers", "vocab_size")
_TOWER_SIZES = ("heads", "image_start_id", "layers", "output_dim", "width")
_END_OF_TEXT = 151643


def write_qwen_vl(model: str, path: Path) -> Path:
    """`model`: "Qwen-VL" or "Qwen-VL-Chat". The directory as it lies on the hub."""
    path.mkdir(parents=True, exist_ok=True)
    facts = facts_of(model)
    for name, content in facts["files"].items():
        tiny = _tiny_config(content) if name == "config.json" else _with_golden_ids(content)
        (path / name).write_text(json.dumps(tiny, indent=2), encoding="utf-8")
    shutil.copy(CKPT / "qwen.tiktoken", path)
    _write_bins(path, min(facts["weights"]["shards"], MOST_SHARDS))
    return path


def _tiny_config(published: dict[str, Any]) -> dict[str, Any]:
    golden = read_json("ckpt/config.json")
    tower = {**published["visual"], **{key: golden["visual"][key] for key in _TOWER_SIZES}}
    return {**published, **{key: golden[key] for key in _SIZES}, "visual": tower}


def _with_golden_ids(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_golden_ids(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_golden_ids(inner) for inner in value]
    return read_json("ckpt/generation_config.json")["eos_token_id"] if value == _END_OF_TEXT else value


def _write_bins(path: Path, n: int) -> None:
    tensors = load_file(CKPT / "model.safetensors")
    names = list(tensors)
    weight_map: dict[str, str] = {}
    for i in range(n):
        file = f"pytorch_model-{i + 1:05d}-of-{n:05d}.bin"
        part = names[i * len(names) // n : (i + 1) * len(names) // n]
        torch.save({name: tensors[name].clone() for name in part}, path / file)
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(tensor.nbytes for tensor in tensors.values())}, "weight_map": weight_map}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
