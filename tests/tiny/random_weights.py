"""Random weights for a directory of config.json: shapes as transformers builds the model, names as on the hub."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file


def write_random_weights(path: Path, hub_names: Mapping[str, str], seed: int = 0) -> Path:
    """model.safetensors of the class that `architectures` in config.json names first, of which transformers knows.

    hub_names: prefix of transformers 5 -> prefix on the hub, of which the first that fits is taken.
    """
    import transformers

    name = json.loads((path / "config.json").read_text())["architectures"][0]
    config = transformers.AutoConfig.from_pretrained(str(path))
    tensors = random_tensors(getattr(transformers, name), config, hub_names, seed)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


def random_tensors(kind: Any, config: Any, hub_names: Mapping[str, str], seed: int = 0) -> dict[str, np.ndarray]:
    """float32 by name, the same for the same seed. kind: transformers' class, made of `config`."""
    rng = np.random.default_rng(seed)
    shapes = dict(sorted(_shapes(kind, config, hub_names)))
    tied = not any(name.endswith("lm_head.weight") for name in shapes)
    return {name: _random(rng, name, shape, tied) for name, shape in shapes.items()}


def _shapes(kind: Any, config: Any, hub_names: Mapping[str, str]) -> Iterator[tuple[str, tuple[int, ...]]]:
    with torch.device("meta"):
        model = kind(config)
    tied = set(model.all_tied_weights_keys)
    for name, tensor in model.named_parameters(remove_duplicate=False):
        if name not in tied:
            yield _hub_name(name, hub_names), tuple(tensor.shape)


def _hub_name(name: str, hub_names: Mapping[str, str]) -> str:
    for prefix, hub in hub_names.items():
        if name.startswith(prefix):
            return hub + name.removeprefix(prefix)
    return name


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...], tied: bool) -> np.ndarray:
    values = rng.standard_normal(shape)
    if len(shape) == 1:
        values = values * 0.05 if name.endswith("bias") else 1 + 0.1 * values
    elif name.endswith("embed_tokens.weight"):
        values = values * (0.15 if tied else 0.5)  # so that a tied head does not repeat the last token for ever
    elif name.endswith("lm_head.weight"):
        values = values * 0.3  # so that the best token leads clearly
    else:
        values = values * 1.4 / np.sqrt(np.prod(shape[1:]))
    return values.astype(np.float32)
