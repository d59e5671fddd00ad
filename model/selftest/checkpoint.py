"""Writes a random checkpoint with heads of 128 beside the demo model's vocabulary: what a published decoder has."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from configs.settings import EMBEDDED_MODEL
from model.ops.load import load_ops
from model.registry import family_of
from model.weight_shapes import META, AskedWeights

HIDDEN = 512
_TEXT = {
    "hidden_size": HIDDEN, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
_SECTIONS = [16, 24, 24]
_VISION = {"hidden_size": 320, "num_heads": 4, "intermediate_size": 640, "out_hidden_size": HIDDEN}  # heads of 80
_WEIGHTS = "model.safetensors"
_SEED = 7


def write_random(path: Path, **decoder: int) -> Path:
    """21 million parameters in float16. decoder: entries of its section that are to be others."""
    for file in EMBEDDED_MODEL.glob("*.json"):
        shutil.copyfile(file, path / file.name)
    config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    parts = config["thinker_config"]
    parts["text_config"].update(_TEXT | decoder)
    parts["text_config"]["rope_scaling"]["mrope_section"] = _SECTIONS
    parts["vision_config"].update(_VISION)
    parts["audio_config"]["output_dim"] = HIDDEN
    (path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(_SEED)
    save(path / _WEIGHTS, {name: _drawn(name, shape, generator) for name, shape in _shapes(path).items()})
    return path


def save(path: Path, tensors: dict[str, Tensor]) -> None:
    """In float16, as the safetensors format has it: the length of a table, the table, the tensors' bytes."""
    table: dict[str, Any] = {}
    at = 0
    for name, tensor in tensors.items():
        table[name] = {"dtype": "F16", "shape": list(tensor.shape), "data_offsets": [at, at + 2 * tensor.numel()]}
        at += 2 * tensor.numel()
    head = json.dumps(table).encode()
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        for tensor in tensors.values():
            file.write(tensor.to(torch.float16).contiguous().numpy().data)


def _shapes(path: Path) -> dict[str, tuple[int, ...]]:
    checkpoint, asked = Checkpoint(path), AskedWeights(torch.float16)
    family_of(checkpoint).build(checkpoint, asked, load_ops(META, torch.float16))
    return asked.shapes


def _drawn(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Activations keep their size from layer to layer."""
    drawn = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return 0.05 * drawn if name.endswith("bias") else 1 + 0.1 * drawn
    return drawn * (1.4 / math.sqrt(math.prod(shape[1:])))
