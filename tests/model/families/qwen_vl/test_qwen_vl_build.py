"""Building the original Qwen-VL: from torch's shards as published, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from configs.checkpoint import CheckpointError
from tests.parity.golden_qwen_vl import CKPT, cases, checkpoint_with, processor_at, sample_of
from tests.parity.harness import OurRun, load_ours
from tests.tables import each_of
from tests.tiny.qwen_vl import write_qwen_vl

pytestmark = pytest.mark.network


def test_shards_of_torch_give_the_same_logits(tmp_path: Path) -> None:
    """As on the hub: pytorch_model-*.bin with an index, no safetensors."""
    path = checkpoint_with(tmp_path / "ckpt")
    tensors = load_file(CKPT / "model.safetensors")
    (path / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map: dict[str, str] = {}
    for shard in range(3):
        file = f"pytorch_model-0000{shard + 1}-of-00003.bin"
        torch.save({name: tensors[name] for name in names[shard::3]}, path / file)
        weight_map |= dict.fromkeys(names[shard::3], file)
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sample = sample_of(cases()["image_1"], processor_at())
    assert torch.equal(OurRun(load_ours(path)).whole(sample), OurRun(load_ours(CKPT)).whole(sample))


def test_text_only_qwen_is_served_as_text(tmp_path: Path) -> None:
    model = load_ours(write_qwen_vl(tmp_path / "text", ["Hello", " there"], sees=False))
    assert dict(model.encoders) == {} and dict(model.placeholder_ids) == {}


def test_a_tower_that_the_config_does_not_name_is_left_over(tmp_path: Path) -> None:
    path = write_qwen_vl(tmp_path / "odd", ["Hello"])
    config = (path / "config.json").read_text().replace('"visual"', '"visuals"')
    (path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=r"does not use: transformer\.visual\."):
        load_ours(path)


@each_of(
    "settings, message",
    [
        ({"no_bias": False}, "no_bias = False is not supported"),
        ({"rotary_pct": 0.25}, "rotary_pct = 0.25 is not supported"),
        ({"kv_channels": 32}, "hidden_size = 256 is not supported"),
        ({"seq_length": None}, "'seq_length' is missing"),
        ({"visual_n_queries": 64}, "n_queries = 64 is not supported"),
        ({"visual_output_dim": 128}, "output_dim = 128 is not supported"),
    ],
)
def test_values_that_would_change_the_mathematics(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        load_ours(checkpoint_with(tmp_path / "ckpt", **settings))
