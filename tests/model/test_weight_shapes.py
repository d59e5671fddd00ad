"""What is known of weights without their bytes: by headers, or by what a network asks for."""

from pathlib import Path

import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from model.ops.collectives import Ranks
from model.ops.load import load_ops
from model.registry import family_of
from model.weight_shapes import META, AskedWeights, HeaderWeights
from model.weights import Weights
from tests.tables import each_of
from tests.tiny.families import NAMES, WRITERS
from tests.tiny.qwen2_vl import write_qwen2_vl

pytestmark = pytest.mark.network

BF16 = torch.bfloat16


def by_headers(path: Path) -> HeaderWeights:
    checkpoint = Checkpoint(path)
    family = family_of(checkpoint)
    return HeaderWeights(checkpoint, family.renames, BF16, family.skips)


@each_of("name", NAMES)
def test_both_count_what_a_load_counts(tmp_path: Path, name: str) -> None:
    """Of a rank of two. The load alone reads bytes of tensors."""
    path = WRITERS[name](tmp_path)
    checkpoint, ranks = Checkpoint(path), Ranks(rank=0, n=2)
    family = family_of(checkpoint)
    loaded = Weights(checkpoint, family.renames, BF16, skips=family.skips)
    family.build(checkpoint, loaded, load_ops(torch.device("cpu"), BF16, ranks=ranks))
    headers, asked = by_headers(path), AskedWeights(BF16)
    for found in (headers, asked):
        family.build(checkpoint, found, load_ops(META, BF16, ranks=ranks, kind="cpu"))
        assert found.taken_bytes == sum(found.nbytes.values()) == loaded.taken_bytes
    assert headers.nbytes == asked.nbytes and headers.read_bytes == 0 < loaded.read_bytes


def test_a_tied_head_is_not_compared(tmp_path: Path) -> None:
    """Its bytes would have to be read."""
    headers = by_headers(write_qwen2_vl(tmp_path))
    one, other = "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight"
    assert headers.equal(one, other) and headers.shape_of(one) != headers.shape_of(other)


def test_headers_are_held_to_the_configuration(tmp_path: Path) -> None:
    headers = by_headers(write_qwen2_vl(tmp_path))
    with pytest.raises(CheckpointError, match="the configuration asks for"):
        headers.take("model.embed_tokens.weight", (1, 2))


def test_what_a_network_rounds_counts_as_it_keeps_it(tmp_path: Path) -> None:
    """It takes a kernel in float32 to scale it; so that the table at start says what is held."""
    checkpoint, name = Checkpoint(write_qwen2_vl(tmp_path)), "model.norm.weight"
    loaded, asked = Weights(checkpoint, family_of(checkpoint).renames, BF16), AskedWeights(BF16)
    shape = loaded.shape_of(name)
    for weights in (loaded, asked):
        assert weights.take(name, shape, torch.float32).nbytes == 2 * weights.taken_bytes > 0
