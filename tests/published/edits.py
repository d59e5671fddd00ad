"""What tests change in the files of a tiny checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from tests.tiny.qwen2_vl import write_json


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
