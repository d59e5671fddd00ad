"""Paged causal attention against a loop over tokens that follows the docstring: mixed batches, GQA, ragged lengths."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from model.ops import paged
from model.ops.base import Ops
from model.ops.load import load_ops
from model.ops.npu import NpuOps
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
DIM = 16


@dataclass(frozen=True)
class Case:
    query: Tensor  # [T, heads, dim]
    key_cache: Tensor
    value_cache: Tensor
    tables: Tensor
    expected: Tensor  # float64 [T, heads, dim]


def make_case(
    ops: Ops,
    q_lens: Sequence[int],
    kv_lens: Sequence[int],
    heads: tuple[int, int],
    block_size: int,
    scatter: bool,
    dim: int = DIM,
) -> Case:
    """A cache in which every slot that no sequence owns is NaN, and the answer token by token."""
    n_heads, kv_heads = heads
    generator = torch.Generator().manual_seed(0)
    counts = [-(-kv // block_size) for kv in kv_lens]
    blocks = list(range(1, sum(counts) + 1))
    if scatter:
        random.Random(0).shuffle(blocks)
    key_cache, value_cache = ops.kv_cache(sum(counts) + 2, block_size, kv_heads, dim)
    # What nobody wrote is seen by nobody; an NPU reads whole blocks, and multiplies it by 0.
    unwritten = 1e4 if isinstance(ops, NpuOps) else float("nan")
    key_cache.fill_(unwritten)
    value_cache.fill_(unwritten)
    tables = torch.full((len(q_lens), max(counts) + 1), 10**6, dtype=torch.int32)  # entries behind the last: poison
    tables[:, 0] = 0
    query = torch.randn(sum(q_lens), n_heads, dim, generator=generator).to(ops.dtype)
    expected = torch.empty(query.shape, dtype=torch.float64)
    row = 0
    for i, (q, kv) in enumerate(zip(q_lens, kv_lens, strict=True)):
        own = [blocks.pop() for _ in range(counts[i])] if scatter else [blocks.pop(0) for _ in range(counts[i])]
        tables[i, : counts[i]] = torch.tensor(own)
        keys = torch.randn(kv, kv_heads, dim, generator=generator).to(ops.dtype)
        values = torch.randn(kv, kv_heads, dim, generator=generator).to(ops.dtype)
        slots = torch.tensor([own[t // block_size] * block_size + t % block_size for t in range(kv)])
        ops.write_kv(keys, values, key_cache, value_cache, slots)
        for j in range(q):
            seen = kv - q + j + 1
            for head in range(n_heads):
                group = head // (n_heads // kv_heads)
                scores = keys[:seen, group].double() @ query[row, head].double() / dim**0.5
                expected[row, head] = torch.softmax(scores, dim=0) @ values[:seen, group].double()
            row += 1
    return Case(query, key_cache, value_cache, tables, expected)


BATCHES = {
    "one token": ([1], [1]),
    "one decode": ([1], [37]),
    "decodes": ([1, 1, 1, 1], [9, 37, 1, 20]),
    "far apart": ([1, 1, 1, 1, 1], [3, 700, 2, 690, 5]),
    "whole prompt": ([21], [21]),
    "chunk behind a past": ([7], [30]),
    "two prompts": ([5, 9], [5, 9]),
    "mixed": ([1, 6, 1, 2, 8, 1], [17, 6, 40, 33, 19, 4]),
    "mixed, decodes together": ([1, 1, 12, 3], [17, 23, 12, 10]),
}


@each_of("block_size", [4, 16, 128])
@each_of("heads", [(4, 4), (6, 2), (7, 1)], ids=str)
@each_of("batch", BATCHES.values(), ids=BATCHES.keys())
def test_equals_the_definition(batch: tuple[list[int], list[int]], heads: tuple[int, int], block_size: int) -> None:
    ops = load_ops(CPU, torch.float32)
    for scatter in (False, True):
        case = make_case(ops, *batch, heads, block_size, scatter)
        attend = ops.plan_attention(*batch, case.tables, block_size)
        for _ in range(2):  # a plan serves every layer
            found = attend(case.query, case.key_cache, case.value_cache)
            torch.testing.assert_close(found.double(), case.expected, rtol=1e-5, atol=1e-5)


@each_of("batch", BATCHES.values(), ids=BATCHES.keys())
def test_every_ops(ops: Ops, batch: tuple[list[int], list[int]]) -> None:
    assert_as_defined(ops, batch, (6, 2), DIM)


@each_of("dim", [32, 64, 72, 80, 104, 128, 192])
def test_every_head_dim(ops: Ops, dim: int) -> None:
    """Those that occur; an NPU knows three of them and pads the rest."""
    assert_as_defined(ops, BATCHES["mixed"], (4, 2), dim)


def assert_as_defined(ops: Ops, batch: tuple[list[int], list[int]], heads: tuple[int, int], dim: int) -> None:
    """Over blocks of 128, which every Ops takes."""
    case = make_case(ops, *batch, heads, 128, scatter=True, dim=dim)
    found = ops.plan_attention(*batch, case.tables, 128)(case.query, case.key_cache, case.value_cache)
    tolerance = 1e-5 if ops.dtype == torch.float32 else 0.02
    assert found.dtype == ops.dtype and found.is_contiguous()
    torch.testing.assert_close(found.double(), case.expected, rtol=tolerance, atol=tolerance)


def test_long_chunk_goes_through_in_query_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk longer than one query block, ending in a shorter one, beside another with a smaller past."""
    monkeypatch.setattr(paged, "_QUERY_BLOCK", 8)
    ops = load_ops(CPU, torch.float32)
    batch = ([29, 10, 1], [50, 13, 6])
    case = make_case(ops, *batch, (4, 2), 4, scatter=True)
    attend = ops.plan_attention(*batch, case.tables, 4)
    assert isinstance(attend, paged.PagedPlan)
    assert attend.mask is not None and attend.mask.shape == (8, 50)
    found = attend(case.query, case.key_cache, case.value_cache)
    torch.testing.assert_close(found.double(), case.expected, rtol=1e-5, atol=1e-5)


@each_of("dim", [DIM, 64])
def test_query_may_be_a_view(ops: Ops, dim: int) -> None:
    assert_a_view_is_taken(ops, dim)


def assert_a_view_is_taken(ops: Ops, dim: int) -> None:
    batch = ([1, 4, 1], [5, 9, 7])
    case = make_case(ops, *batch, (4, 2), 128, scatter=True, dim=dim)
    wide = torch.cat([case.query, case.query[:, :2]], dim=1)
    attend = ops.plan_attention(*batch, case.tables, 128)
    found = attend(wide[:, :4], case.key_cache, case.value_cache)
    assert torch.equal(found, attend(case.query, case.key_cache, case.value_cache))


def test_decodes_of_similar_length_share_one_call() -> None:
    plan = paged.plan_paged_attention(
        [1] * 8, [450, 433, 470, 401, 455, 449, 380, 461], torch.zeros(8, 4).int(), 128, torch.float32
    )
    assert len(plan.decodes) == 1
    assert plan.decodes[0].rows == slice(0, 8)


def test_a_long_sequence_does_not_pad_the_short_ones() -> None:
    plan = paged.plan_paged_attention([1] * 4, [6000, 40, 60, 50], torch.zeros(4, 50).int(), 128, torch.float32)
    assert sorted(group.longest for group in plan.decodes) == [60, 6000]


def test_gathers_are_bounded() -> None:
    plan = paged.plan_paged_attention([1] * 16, [30000] * 16, torch.zeros(16, 300).int(), 128, torch.float32)
    assert len(plan.decodes) == 16
