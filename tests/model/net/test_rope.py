"""Length-dependent angles: alpha by the prompt, whole batches of several, logn by the position."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.forward_batch import ForwardBatch
from model.net.rope import LogN, NtkRope
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
DIM, THETA = 128, 10000.0


def batch_of(*sequences: tuple[int, int, int]) -> ForwardBatch:
    """(prompt length, first new position, new tokens) of each sequence."""
    positions = torch.cat([torch.arange(start, start + n) for _, start, n in sequences])
    nothing = torch.empty(0, dtype=torch.int64)
    return ForwardBatch(
        ids=positions, positions=positions.expand(3, -1), media_rows=nothing, media_embeds=None, slots=positions,
        block_tables=nothing, q_lens=tuple(n for _, _, n in sequences),
        kv_lens=tuple(start + n for _, start, n in sequences), sample_rows=nothing,
        prompt_lens=tuple(prompt for prompt, _, _ in sequences),
    )  # fmt: skip


def angles(alpha: int, positions: list[int]) -> tuple[Tensor, Tensor]:
    """As the published code computes them: float32 frequencies from a base in double precision."""
    base = THETA * alpha ** (DIM / (DIM - 2))
    inv_freq = 1.0 / (base ** (torch.arange(0, DIM, 2).float() / DIM))
    found = torch.outer(torch.tensor(positions).float(), inv_freq)
    both = torch.cat([found, found], dim=-1)
    return both.cos(), both.sin()


def rope(trained_length: int | None = 2048) -> NtkRope:
    return NtkRope(head_dim=DIM, theta=THETA, trained_length=trained_length, device=CPU)


@each_of(
    "prompt, alpha",
    [(1, 1), (2047, 1), (2048, 1), (2049, 3), (3072, 3), (4096, 3), (4097, 7), (8192, 7), (8193, 15), (9192, 15)],
)
def test_alpha_grows_with_the_prompt(prompt: int, alpha: int) -> None:
    found = rope().angles(batch_of((prompt, prompt - 1, 1)))
    for ours, expected in zip(found, angles(alpha, [prompt - 1]), strict=True):
        assert torch.equal(ours, expected) and ours.dtype == torch.float32


@each_of("trained", [64, 1000, 2048, 8192])
def test_alpha_is_that_of_the_published_formula(trained: int) -> None:
    lengths = [max(1, trained * k // 4 + offset) for k in range(1, 70) for offset in (-1, 0, 1)]
    for prompt in lengths:
        published = max(2 ** math.ceil(math.log(prompt / trained, 2) + 1) - 1, 1)
        found, _ = rope(trained).angles(batch_of((prompt, 777, 1)))
        assert torch.equal(found, angles(published, [777])[0]), prompt


def test_a_sequence_keeps_its_alpha_beside_others() -> None:
    """Chunks, decodes far behind the prompt and a prefill of prompt and answer: the prompt's length alone counts."""
    cos, sin = rope().angles(batch_of((2000, 0, 3), (5000, 100, 2), (2048, 9000, 1), (2049, 2049, 1)))
    rows = [(1, [0, 1, 2]), (7, [100, 101]), (1, [9000]), (3, [2049])]
    expected = [angles(alpha, positions) for alpha, positions in rows]
    assert torch.equal(cos, torch.cat([c for c, _ in expected]))
    assert torch.equal(sin, torch.cat([s for _, s in expected]))


def test_a_model_without_dynamic_ntk_has_one_base() -> None:
    found, _ = rope(None).angles(batch_of((9000, 8999, 1), (1, 5, 1)))
    assert torch.equal(found, angles(1, [8999, 5])[0])


def test_a_batch_that_does_not_say_its_prompts_is_an_error() -> None:
    for said in ((), (9000, 1, 1)):
        with pytest.raises(ValueError):
            rope().angles(replace(batch_of((9000, 0, 1), (1, 0, 1)), prompt_lens=said))


def test_logn_scales_queries_behind_the_trained_length() -> None:
    logn = LogN(trained_length=2048, longest=8192, device=CPU)
    assert logn.scales(batch_of((10, 0, 10), (2048, 2047, 1))) is None
    scales = logn.scales(batch_of((10, 0, 2), (100, 2046, 4)))
    assert scales is not None and scales.dtype == torch.float32
    expected = [1.0, 1.0, 1.0, 1.0, math.log(2049, 2048), math.log(2050, 2048)]
    assert scales.tolist() == pytest.approx(expected, abs=1e-7)
