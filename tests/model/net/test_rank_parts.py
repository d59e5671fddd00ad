"""What ranks share out: every tensor of every family once, in numbers of ranks that work, and refusals of the rest."""

from pathlib import Path
from typing import Any

import pytest
import torch

from configs.checkpoint import Checkpoint, CheckpointError
from model.net.rank_parts import rank_part, vocabulary_part
from model.ops.collectives import ALONE, Ranks
from model.ops.load import load_ops
from model.registry import family_of
from model.weight_tensors import WHOLE
from model.weights import Weights
from tests.model.net.asked import built, elements, times_read
from tests.model.ops.test_collectives import on_ranks
from tests.npu.families import mixed_logits, samples_of, write_family
from tests.parity.harness import load_ours, load_over
from tests.tables import each_of
from tests.tiny.families import NAMES, WRITERS

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"heads": 12, "kv_heads": 4, "inter": 24}
# Of decoders, by the end of the name: what each rank has of its own. What is told of nowhere is whole on every rank.
SHARED = (
    ".q_proj.weight", ".q_proj.bias", ".c_attn.weight", ".c_attn.bias", ".query_key_value.weight",
    ".query_key_value.bias", ".o_proj.weight", ".dense.weight", ".dense.bias", ".gate_proj.weight", ".up_proj.weight",
    ".down_proj.weight", ".w1.weight", ".w2.weight", ".c_proj.weight", ".dense_h_to_4h.weight", ".dense_h_to_4h.bias",
    ".dense_4h_to_h.weight", ".dense_4h_to_h.bias", ".embed_tokens.weight", ".wte.weight",
)  # fmt: skip
REPEATED = (".k_proj.weight", ".k_proj.bias", ".v_proj.weight", ".v_proj.bias")  # as often as heads of keys have to be


def test_heads_and_channels() -> None:
    assert rank_part(ALONE, **SIZES) is None
    for n, of_keys in ((2, 2), (4, 1), (12, 1)):
        parts = [rank_part(Ranks(rank=rank, n=n), **SIZES) for rank in range(n)]
        held = [part for part in parts if part is not None]
        assert [i for part in held for i in part.heads] == list(range(12))
        assert [i for part in held for i in part.inter] == list(range(24))
        for part in held:
            assert len(part.kv_heads) == of_keys
            read = {i // 3 for i in part.heads}  # three queries read one key
            assert read == set(part.kv_heads)


@each_of(
    ("n", "sizes", "words"),
    [(5, {}, "12 heads of queries"), (3, {}, "4 heads of keys and values"), (4, {"inter": 26}, "26 inner channels")],
)
def test_sizes_that_are_not_shared(n: int, sizes: dict[str, int], words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        rank_part(Ranks(rank=1, n=n), **(SIZES | sizes))
    served = "1, 2" if sizes else "1, 2, 4, 12"
    assert str(caught.value).startswith(f"config.json: {n} ranks do not share {words}")
    assert str(caught.value).endswith(f"evenly (ranks that share all: {served})")


@each_of("vocab", [1, 3, 7, 8, 1015])
@each_of("n", [1, 2, 4, 8])
def test_rows_of_a_vocabulary(vocab: int, n: int) -> None:
    parts = [vocabulary_part(Ranks(rank=rank, n=n), vocab) for rank in range(n)]
    assert [i for part, _ in parts for i in part] == list(range(vocab))
    assert {n_rows for _, n_rows in parts} == {-(-vocab // n)}


@each_of("family", NAMES)
def test_every_tensor_is_read_once_or_whole(tmp_path: Path, family: str) -> None:
    path = WRITERS[family](tmp_path)
    alone = built(path, 0, 1)
    whole, kv_heads = elements(alone.asked), alone.kv.kv_heads
    for n in (2, 4):
        repeats = max(n // kv_heads, 1)
        asked = [built(path, rank, n).asked for rank in range(n)]
        found = times_read(asked)
        for name, times in found.items():
            ours = name.startswith(("model.", "transformer.h.", "transformer.wte", "lm_head"))
            expected = n
            if ours and name.endswith((*SHARED, "lm_head.weight")):
                expected = 1
            elif ours and name.endswith(REPEATED):
                expected = repeats
            assert times == expected, (n, name)
            if expected == n > repeats:
                assert all(one.cuts[name] == WHOLE for one in asked), (n, name)
        for one in asked:  # no rank has more than its share; that of a vocabulary may be one row less of the last one
            mine = elements(one)
            assert all(
                mine[name] <= -(-size * times // n) + one.shapes[name][-1]
                for (name, size), times in zip(whole.items(), found.values(), strict=True)
                if not name.endswith(".bias")
            ), n


@each_of("n", [2, 4])
def test_bytes_of_the_decoder_are_shared(tmp_path: Path, n: int) -> None:
    """By what was read of the file. Towers are whole."""
    path = WRITERS["qwen2_audio"](tmp_path)  # as many heads of keys as of queries
    checkpoint = Checkpoint(path)
    family = family_of(checkpoint)

    def read(ranks: Ranks) -> tuple[int, int]:
        weights = Weights(checkpoint, family.renames, torch.float32, CPU, family.skips)
        family.build(checkpoint, weights, load_ops(CPU, torch.float32, ranks=ranks))
        shapes = built(path, 0, 1).asked.shapes
        tower = sum(
            torch.Size(shape).numel() * 4 for name, shape in shapes.items() if not name.startswith(("model.", "lm_"))
        )
        return weights.read_bytes - tower, tower

    whole, tower = read(ALONE)
    assert tower > 0
    for rank in range(n):
        assert whole / n <= read(Ranks(rank=rank, n=n))[0] <= 1.02 * whole / n


def test_two_ranks_say_what_one_says(tmp_path: Path) -> None:
    """A picture, a video, chunks and decodes over a cache of half the heads; tests/ranks has all families."""
    path = write_family("qwen2_5_vl", tmp_path)
    samples = samples_of("qwen2_5_vl", path)
    expected = mixed_logits(load_ours(path), samples)

    def run(ranks: Ranks) -> torch.Tensor:
        model = load_over(load_ops(CPU, torch.float32, ranks=ranks), path)
        assert model.kv.kv_heads == 1 and model.vocab_size == expected.shape[1]
        return mixed_logits(model, samples)

    for found in on_ranks(2, tmp_path, run):
        assert float((found - expected).abs().max()) <= 2e-5 * float(expected.abs().max())
