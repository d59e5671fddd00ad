"""A tiny checkpoint of every family, and what tests change in its files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from tests.tiny.fuyu import write_fuyu
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_5_vl import write_qwen2_5_vl
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tiny.qwen2_vl import write_json, write_qwen2_vl
from tests.tiny.qwen_vl import write_qwen_vl


def write_qwen(path: Path) -> Path:
    return write_qwen_vl(path, ["Hello", " there"])


WRITERS: dict[str, Callable[..., Path]] = {
    "qwen2_vl": write_qwen2_vl, "qwen2_5_vl": write_qwen2_5_vl, "qwen2_5_omni": write_qwen2_5_omni,
    "qwen2_audio": write_qwen2_audio, "qwen_vl": write_qwen, "fuyu": write_fuyu,
}  # fmt: skip


def edit_json(path: Path, change: Callable[[dict[str, Any]], object], name: str = "config.json") -> Path:
    """Change one JSON file of the directory `path`; an absent one begins empty."""
    file = path / name
    values = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    change(values)
    write_json(file, values)
    return path


def edit_tensors(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Change what model.safetensors of the directory `path` holds."""
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path
