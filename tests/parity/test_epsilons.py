"""The epsilon of every norm of every family, against that of the same norm in transformers.

An epsilon of 1e-6 for 1e-5 changes logits by less than the bars of parity. Here each norm that our networks launch is
found in transformers' by its weight, and the two numbers are compared.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.engine.messages import LargestItem
from model.engine.profile import encode_dummy
from model.ops.torch_ops import TorchOps
from model.registry import family_of
from tests.parity.harness import OurRun, Sample, load_hf, load_over
from tests.parity.theirs import transformers
from tests.published.edits import edit_json, edit_tensors
from tests.tables import entries
from tests.tiny.families import NAMES, WRITERS

pytestmark = pytest.mark.network

SMALL = MediaConfig(max_pixels=56 * 84, max_video_pixels=200_704, max_frames=8, max_audio_seconds=2)
LENGTH = 2048
NORM = "ln_"  # in the names of Qwen-VL's norms, and of nothing else; their biases too
KEYS = ("eps", "epsilon")  # what the names of keys in config.json end with
Change = Callable[[dict[str, Any], dict[str, Any]], None]
Norms = dict[bytes, set[float]]  # epsilons by the sorted values of a norm's weight: fused heads may stand in an order


def key_of(weight: Tensor) -> bytes:
    return weight.detach().float().sort().values.numpy().tobytes()


class ListeningOps(TorchOps):
    """Notes the weight and the epsilon of each norm that is launched."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"), torch.float32)
        self.heard: Norms = {}

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        self.heard.setdefault(key_of(weight), set()).add(eps)
        return super().rms_norm(x, weight, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        self.heard.setdefault(key_of(weight), set()).add(eps)
        return super().layer_norm(x, weight, bias, eps)


def ours_at(path: Path) -> Norms:
    """Of all towers, connectors and the decoder: the largest item of each kind, and a few words."""
    ops, checkpoint = ListeningOps(), Checkpoint(path)
    model, host = load_over(ops, path), family_of(checkpoint).host(checkpoint, SMALL.max_pixels)
    for item in host.largest(SMALL, LENGTH):
        encode_dummy(model, LargestItem(kind=item.kind, grid=item.grid, n_tokens=item.n_tokens, fixed=False))
    n, none = 5, torch.empty(0, dtype=torch.long)
    OurRun(model).whole(
        Sample(ids=torch.arange(n), positions=torch.arange(n).expand(3, n), grids=(), pixels=(), pads=none)
    )
    return ops.heard


def theirs_at(path: Path) -> Norms:
    found: Norms = {}
    for module in load_hf(path).modules():
        eps = getattr(module, "eps", getattr(module, "variance_epsilon", None))
        weight = getattr(module, "weight", None)
        if eps is not None and isinstance(weight, Tensor):
            found.setdefault(key_of(weight), set()).add(eps)
    return found


def published_at(path: Path) -> Norms:
    """Of Qwen-VL, which transformers lacks: `layer_norm_epsilon`, and the 1e-6 that its visual.py gives every norm."""
    own = Checkpoint(path).config.positive("layer_norm_epsilon", 1e-6)
    norms = {name: tensor for name, tensor in load_file(path / "model.safetensors").items() if NORM in name}
    return {key_of(tensor): {1e-6 if ".visual." in name else own} for name, tensor in norms.items()}


def drawn(tensors: dict[str, Any]) -> None:
    """The tiny Qwen-VL's norms weigh nothing: draw their weights, which tell them apart here."""
    rng = np.random.default_rng(3)
    for name, tensor in tensors.items():
        if NORM in name:
            tensors[name] = rng.uniform(0.5, 1.5, tensor.shape).astype(np.float32)


def epsilons_of(values: dict[str, Any], known: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The places of epsilons in config.json, at any depth. known: all keys of the classes, there or not."""
    for key in sorted({*values, *known}):
        if key.endswith(KEYS):
            yield values, key
        elif isinstance(values.get(key), dict):
            yield from epsilons_of(values[key], known.get(key) or {})


def another(config: dict[str, Any], known: dict[str, Any]) -> None:
    """Each key gets a value of its own."""
    for i, (section, key) in enumerate(list(epsilons_of(config, known)), 1):
        section[key] = i / 64


def left_out(config: dict[str, Any], known: dict[str, Any]) -> None:
    for section, key in list(epsilons_of(config, known)):
        section.pop(key, None)


@pytest.mark.parametrize("name", NAMES)
def test_every_norm_has_its_epsilon(name: str, tmp_path: Path) -> None:
    with entries() as entry:
        for change in (another, left_out):
            with entry(change.__name__):
                check(WRITERS[name](tmp_path / change.__name__), name, change)


def check(path: Path, name: str, change: Change) -> None:
    known = {} if name == "qwen_vl" else transformers.AutoConfig.from_pretrained(str(path)).to_dict()
    edit_json(path, lambda config: change(config, known))
    if name == "qwen_vl":
        edit_tensors(path, drawn)
    ours, theirs = ours_at(path), published_at(path) if name == "qwen_vl" else theirs_at(path)
    assert ours and ours.keys() <= theirs.keys(), "a norm that the reference does not have"
    for weight, eps in ours.items():
        assert len(eps) == len(theirs[weight]) == 1, "weights that are drawn tell norms apart"
        assert math.isclose(*eps, *theirs[weight], rel_tol=1e-6), f"{eps} for {theirs[weight]}"
