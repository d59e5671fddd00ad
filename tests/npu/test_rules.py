"""Each rule of npu_rules.py refuses what breaks it, by operator, argument, rule and value; ordinary calls pass."""

import ast
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from configs.checkpoint import CheckpointError
from model.ops import npu_rules as rules
from model.ops.npu import NpuOps
from tests.npu.references import Refused
from tests.npu.ring0 import define_operators
from tests.tables import each_of

pytestmark = pytest.mark.network

CPU = torch.device("cpu")
ATTENTION = "npu_fused_infer_attention_score"
CACHE = "npu_scatter_pa_kv_cache"


def half(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.zeros(shape, dtype=dtype)


def strided(*shape: int) -> Tensor:
    return half(*shape[:-1], shape[-1] + 1)[..., :-1]


def mask(dtype: torch.dtype = torch.int8, side: int = 2048) -> Tensor:
    return torch.zeros((side, side), dtype=dtype)


def table(rows: int = 2, columns: int = 2, dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.zeros((rows, columns), dtype=dtype)


Call = Callable[..., object]
ORDINARY: dict[Call, dict[str, Any]] = {
    rules.check_dtype: {"dtype": torch.bfloat16},
    rules.padded_head_dim: {"head_dim": 192},
    rules.check_heads: {"heads": 256, "kv_heads": 4, "head_dim": 128},
    rules.check_cache: {"block_size": 512, "kv_heads": 8, "padded_dim": 128},
    rules.check_lengths: {"query_ends": [2, 3], "key_lengths": [130, 5]},
    rules.check_packed: {"key": half(5, 2, 64), "kv_heads": 2, "head_dim": 64, "key_ends": [3, 5]},
    rules.check_paged: {
        "query_ends": [2, 3], "key_lengths": [130, 5], "table": table(), "block_size": 128, "mask": mask(),
        "sparse_mode": 3,
    },
    rules.check_graph_layout: {"layout": "TND", "heads": 4, "kv_heads": 2},
    rules.check_workspace: {"workspace": torch.zeros(8, dtype=torch.uint8)},
    rules.check_paged_keys: {"key": half(3, 128, 128), "kv_heads": 2, "head_dim": 64, "block_size": 128, "blocks": 3},
    rules.check_attention: {
        "query": half(3, 4, 64), "key": half(5, 2, 64), "value": half(5, 2, 64), "query_end": 3,
    },
    rules.check_cache_write: {
        "key": half(3, 2, 64), "value": half(3, 2, 64), "key_cache": half(2, 128, 2, 64),
        "value_cache": half(2, 128, 2, 64), "slots": torch.tensor([1, 2, 3]),
    },
    rules.check_norm: {"x": half(3, 8), "weight": half(8)},
    rules.check_add_norm: {"x": half(3, 8), "residual": half(3, 8), "weight": half(8)},
    rules.check_rotary: {"x": half(3, 2, 8), "cos": half(3, 1, 8), "sin": half(3, 1, 8)},
    rules.check_swiglu: {"x": half(3, 8)},
}  # fmt: skip
"""Of each check, arguments that it lets pass."""

BROKEN: list[tuple[Call, dict[str, Any], str]] = [
    (rules.check_dtype, {"dtype": torch.float16}, f"{ATTENTION}, dtype, bfloat16, torch.float16"),
    (rules.padded_head_dim, {"head_dim": 256}, f"{ATTENTION}, head_dim, at most 192, 256"),
    (rules.check_heads, {"head_dim": 63}, "npu_rotary_mul, head_dim, even, 63"),
    (rules.check_heads, {"heads": 260}, f"{ATTENTION}, num_heads, at most 256, 260"),
    (rules.check_heads, {"kv_heads": 3}, f"{ATTENTION}, num_key_value_heads, divides num_heads 256, 3"),
    (rules.check_heads, {"kv_heads": 2}, f"{ATTENTION}, num_key_value_heads, at least num_heads 256 / 64, 2"),
    (rules.check_cache, {"block_size": 64}, f"{ATTENTION}, block_size, a multiple of 128, at most 512, 64"),
    (rules.check_cache, {"block_size": 640}, "at most 512, 640"),
    (rules.check_cache, {"kv_heads": 512}, f"{ATTENTION}, key, num_key_value_heads * head_dim at most 65535, 65536"),
    (rules.check_lengths, {"query_ends": torch.tensor([2, 3])}, "actual_seq_lengths, a list of host ints, Tensor"),
    (rules.check_lengths, {"key_lengths": torch.tensor([130, 5])}, "actual_seq_lengths_kv, a list of host ints"),
    (rules.check_lengths, {"key_lengths": [torch.tensor(130), 5]}, "a list of host ints, list"),
    (
        rules.check_lengths,
        {"query_ends": list(range(1, 4098)), "key_lengths": [1] * 4097},
        f"{ATTENTION}, actual_seq_lengths, at most 4096 sequences, 4097",
    ),
    (rules.check_lengths, {"query_ends": [0, 2, 3]}, "actual_seq_lengths, cumulative without a leading 0, [0, 2, 3]"),
    (rules.check_lengths, {"query_ends": [1, 1]}, "cumulative without a leading 0, [1, 1]"),
    (rules.check_lengths, {"key_lengths": [130]}, "actual_seq_lengths_kv, as many as actual_seq_lengths, 2, 1"),
    (rules.check_packed, {"key_ends": [5, 5]}, "actual_seq_lengths_kv, cumulative without a leading 0, [5, 5]"),
    (rules.check_packed, {"key_ends": [3, 4]}, f"{ATTENTION}, key, shape (4, 2, 64), (5, 2, 64)"),
    (rules.check_paged, {"key_lengths": [1, 5]}, "actual_seq_lengths_kv, at least its 2 new tokens, 1"),
    (
        rules.check_paged,
        {"key_lengths": [130, 262145], "table": table(2, 2049)},
        "actual_seq_lengths_kv, at most 262144 beside one new token, 262145",
    ),
    (rules.check_paged, {"table": table(dtype=torch.int64)}, f"{ATTENTION}, block_table, int32, torch.int64"),
    (rules.check_paged, {"table": table(2, 4)[:, :2]}, f"{ATTENTION}, block_table, contiguous, strides (4, 1)"),
    (rules.check_paged, {"table": table(1)}, "block_table, a row for each of 2 sequences, 1"),
    (rules.check_paged, {"table": table(2, 1)}, "block_table, a column for each of 2 blocks, 1"),
    (rules.check_paged, {"sparse_mode": 2}, f"{ATTENTION}, sparse_mode, 3 with a table and a mask, 2"),
    (rules.check_paged, {"mask": mask(side=1024)}, "atten_mask, shape (2048, 2048), (1024, 1024)"),
    (rules.check_paged, {"mask": mask(torch.bfloat16)}, "atten_mask, int8, torch.bfloat16"),
    (rules.check_paged, {"mask": None}, f"{ATTENTION}, sparse_mode, 0 without a mask, 3"),
    (rules.check_paged, {"mask": None, "sparse_mode": 0}, "atten_mask, given beside several new tokens, None"),
    (rules.check_paged, {"query_ends": [1, 2]}, "atten_mask, none beside one new token each, (2048, 2048)"),
    (rules.check_graph_layout, {"kv_heads": 4}, "input_layout, BSND in a graph of 4 heads over 4, TND"),
    (rules.check_workspace, {"workspace": half(8)}, f"{ATTENTION}, workspace, uint8, torch.bfloat16"),
    (rules.check_paged_keys, {"key": half(3, 16, 128)}, f"{ATTENTION}, key, shape (3, 128, 128), (3, 16, 128)"),
    (rules.check_paged_keys, {"blocks": 4}, "block_table, names at most the cache's 3 blocks, shared ones counted"),
    (rules.check_attention, {"query": half(3, 4, 80)}, f"{ATTENTION}, query, head_dim one of (64, 128, 192), 80"),
    (
        rules.check_attention,
        {"query": half(3, 4, 64, dtype=torch.float32)},
        f"{ATTENTION}, dtype, bfloat16, torch.float32",
    ),
    (
        rules.check_attention,
        {"key": half(5, 2, 64, dtype=torch.float16)},
        f"{ATTENTION}, key, value, torch.bfloat16, torch.float16",
    ),
    (rules.check_attention, {"query": strided(3, 4, 64)}, f"{ATTENTION}, query, contiguous, strides (260, 65, 1)"),
    (rules.check_attention, {"value": strided(5, 2, 64)}, f"{ATTENTION}, value, contiguous, strides (130, 65, 1)"),
    (rules.check_attention, {"value": half(5, 2, 128)}, "value, the shape of key (5, 2, 64), (5, 2, 128)"),
    (rules.check_attention, {"query_end": 2}, "actual_seq_lengths, the last is the query's 3 rows, 2"),
    (
        rules.check_cache_write,
        {"slots": torch.tensor([1.0, 2, 3])},
        f"{CACHE}, slot_mapping, int32 or int64, torch.float32",
    ),
    (rules.check_cache_write, {"slots": torch.arange(6)[::2]}, f"{CACHE}, slot_mapping, contiguous, strides (2,)"),
    (rules.check_cache_write, {"key_cache": half(2, 128, 128)}, f"{CACHE}, key_cache, four dimensions, (2, 128, 128)"),
    (rules.check_cache_write, {"value": half(3, 2, 80)}, f"{CACHE}, value, shape (3, 2, 64), (3, 2, 80)"),
    (
        rules.check_cache_write,
        {"key": half(3, 2, 64, dtype=torch.float16)},
        f"{CACHE}, key, the cache's torch.bfloat16, torch.float16",
    ),
    (rules.check_cache_write, {"key": strided(3, 2, 64)}, f"{CACHE}, key, contiguous, strides (130, 65, 1)"),
    (rules.check_cache_write, {"key_cache": strided(2, 128, 2, 64)}, f"{CACHE}, key_cache, contiguous"),
    (rules.check_norm, {"x": half(8)}, "npu_rms_norm, input, two to eight dimensions, 1"),
    (
        rules.check_add_norm,
        {"residual": half(3, 8, dtype=torch.float16)},
        "npu_add_rms_norm, x2, torch.bfloat16, torch.float16",
    ),
    (rules.check_norm, {"weight": half(8, dtype=torch.float32)}, "npu_rms_norm, gamma, torch.bfloat16, torch.float32"),
    (rules.check_norm, {"weight": half(7)}, "npu_rms_norm, gamma, shape (8,), (7,)"),
    (rules.check_add_norm, {"x": half(0, 8), "residual": half(0, 8)}, "npu_add_rms_norm, x1, not empty, (0, 8)"),
    (rules.check_add_norm, {"residual": half(1, 8)}, "npu_add_rms_norm, x2, the shape of x1 (3, 8), (1, 8)"),
    (rules.check_rotary, {"x": half(1, 3, 2, 8)}, "npu_rotary_mul, input, [tokens, heads, head_dim], (1, 3, 2, 8)"),
    (rules.check_rotary, {"x": half(3, 2, 7)}, "npu_rotary_mul, input, head_dim even and below 896, 7"),
    (rules.check_rotary, {"x": half(3, 2, 896)}, "head_dim even and below 896, 896"),
    (rules.check_rotary, {"x": half(3, 1000, 8)}, "npu_rotary_mul, input, at most 999 heads, 1000"),
    (rules.check_rotary, {"sin": half(3, 8)}, "npu_rotary_mul, r2, shape (3, 1, 8), (3, 8)"),
    (rules.check_rotary, {"cos": half(3, 1, 8, dtype=torch.float32)}, "npu_rotary_mul, r1, torch.bfloat16"),
    (rules.check_swiglu, {"x": half(0, 8)}, "npu_swiglu, input, not empty, (0, 8)"),
    (rules.check_swiglu, {"x": half(3, 7)}, "npu_swiglu, input, an even last dimension, 7"),
    (rules.check_swiglu, {"x": strided(3, 8)}, "npu_swiglu, input, contiguous, strides (9, 1)"),
]


@each_of("check", ORDINARY, ids=[check.__name__ for check in ORDINARY])
def test_ordinary_arguments_pass(check: Call) -> None:
    check(**ORDINARY[check])


@each_of("check, changed, message", BROKEN, ids=lambda part: part if isinstance(part, str) else "")
def test_a_broken_rule_is_named(check: Call, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(rules.RuleError) as caught:
        check(**{**ORDINARY[check], **changed})
    assert message in str(caught.value)


def test_the_table_breaks_every_rule() -> None:
    source = ast.parse(Path(rules.__file__).read_text())
    asked = {node.lineno for node in ast.walk(source) if isinstance(node, ast.Raise)}
    broken = set()
    for check, changed, _ in BROKEN:
        with pytest.raises(rules.RuleError) as caught:
            check(**{**ORDINARY[check], **changed})
        broken.add(traceback.extract_tb(caught.tb)[-1].lineno)
    assert broken == asked


@each_of("dim, padded", [(16, 64), (64, 64), (72, 128), (80, 128), (104, 128), (128, 128), (130, 192)])
def test_heads_are_padded_to_the_next_that_attention_takes(dim: int, padded: int) -> None:
    define_operators()
    ops = NpuOps(CPU, torch.bfloat16)
    assert ops.padded_head_dim(dim) == padded
    assert ops.kv_cache(2, 128, 3, dim)[0].shape == (2, 128, 3, padded)


@each_of("call", ["swiglu", "rotary"])
def test_launches_are_asked_only_where_that_is_wanted(call: str) -> None:
    """Without it the reference is what refuses, as a device would, later and in other words."""
    define_operators()
    asked, plain = NpuOps(CPU, torch.bfloat16, checks=True), NpuOps(CPU, torch.bfloat16)
    q = half(5, 2, 64).bfloat16()

    def break_a_rule(ops: NpuOps) -> None:
        if call == "swiglu":
            ops.swiglu(q[0, :, :7])
        else:
            ops.rotary(q, half(5, 3, 64).bfloat16(), half(5, 3, 64).bfloat16())

    with pytest.raises(rules.RuleError):
        break_a_rule(asked)
    with pytest.raises(Refused):
        break_a_rule(plain)


def test_a_network_with_heads_that_no_operator_takes_is_refused_when_it_is_built() -> None:
    with pytest.raises(CheckpointError, match=r"npu_fused_infer_attention_score, head_dim, at most 192, 256"):
        NpuOps(CPU, torch.bfloat16).check_heads(4, 4, 256)


def test_more_segments_than_one_call_takes_go_through_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    define_operators()
    ops = NpuOps(CPU, torch.bfloat16)
    lengths = [3, 1, 4, 1, 5]
    q, k, v = torch.randn((3, sum(lengths), 2, 64), generator=torch.Generator().manual_seed(0)).bfloat16()
    whole = ops.segment_attention(q, k, v, lengths)
    monkeypatch.setattr(rules, "MAX_SEQUENCES", 2)
    assert torch.equal(ops.segment_attention(q, k, v, lengths), whole)
