"""What the documentation of Ascend's fused operators demands of their arguments, as far as our calls can break it.

The operators' host code lets most of it through, and the device then fails with a number or computes something else. So
each rule is asked here first, of shapes, strides, dtypes and host ints: nothing is read from the device. A broken one
raises RuleError: operator, argument, rule, value.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.bfloat16, torch.float16)
HEAD_DIMS = (64, 128, 192)  # what attention over packed tokens takes; narrower heads are padded
CAUSAL_MASK = 2048  # side of the compressed mask of sparse_mode 3
MAX_SEQUENCES = 4096  # of one attention call over packed tokens
_MAX_HEADS = 256
_MAX_SHARING = 64  # query heads to one key-value head
_MAX_ROTARY_HEADS = 999
_MAX_BLOCK_WIDTH = 65535  # kv_heads * head_dim of a paged cache
_MAX_DECODE_LENGTH = 262144  # keys that a sequence with one new token may see

_ATTENTION = "npu_fused_infer_attention_score"
_CACHE = "npu_scatter_pa_kv_cache"
_NORM = "npu_rms_norm"
_ADD_NORM = "npu_add_rms_norm"
_ROTARY = "npu_rotary_mul"
_SWIGLU = "npu_swiglu"


class RuleError(RuntimeError):
    """What CANN would refuse or compute wrongly: "operator, argument, rule, value"."""


def _require(holds: bool, operator: str, argument: str, rule: str, value: object) -> None:
    if not holds:
        raise RuleError(f"{operator}, {argument}, {rule}, {value}")


def padded_head_dim(head_dim: int) -> int:
    """The narrowest head that attention takes and `head_dim` fits into."""
    _require(0 < head_dim <= HEAD_DIMS[-1], _ATTENTION, "head_dim", f"at most {HEAD_DIMS[-1]}", head_dim)
    return next(dim for dim in HEAD_DIMS if head_dim <= dim)


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Of a network, when it is built."""
    padded_head_dim(head_dim)
    _require(head_dim % 2 == 0, _ROTARY, "head_dim", "even", head_dim)
    _require(heads <= _MAX_HEADS, _ATTENTION, "num_heads", f"at most {_MAX_HEADS}", heads)
    _require(heads % kv_heads == 0, _ATTENTION, "num_key_value_heads", f"divides num_heads {heads}", kv_heads)
    rule = f"at least num_heads {heads} / {_MAX_SHARING}"
    _require(heads <= _MAX_SHARING * kv_heads, _ATTENTION, "num_key_value_heads", rule, kv_heads)


def check_cache(block_size: int, kv_heads: int, padded_dim: int) -> None:
    """Of the paged cache, when it is made."""
    holds = block_size % 128 == 0 and 128 <= block_size <= 512
    _require(holds, _ATTENTION, "block_size", "a multiple of 128, at most 512", block_size)
    width = kv_heads * padded_dim
    rule = f"num_key_value_heads * head_dim at most {_MAX_BLOCK_WIDTH}"
    _require(width <= _MAX_BLOCK_WIDTH, _ATTENTION, "key", rule, width)


def check_lengths(query_ends: Sequence[int], key_lengths: Sequence[int]) -> None:
    """Of both lists of lengths, once for all layers."""
    for argument, lengths in (("actual_seq_lengths", query_ends), ("actual_seq_lengths_kv", key_lengths)):
        on_host = type(lengths) is list and set(map(type, lengths)) == {int}
        _require(on_host, _ATTENTION, argument, "a list of host ints", type(lengths).__name__)
    count = len(query_ends)
    rule = f"at most {MAX_SEQUENCES} sequences"
    _require(count <= MAX_SEQUENCES, _ATTENTION, "actual_seq_lengths", rule, count)
    rule = "cumulative without a leading 0"
    _require(_rises(query_ends), _ATTENTION, "actual_seq_lengths", rule, query_ends)
    rule = f"as many as actual_seq_lengths, {count}"
    _require(len(key_lengths) == count, _ATTENTION, "actual_seq_lengths_kv", rule, len(key_lengths))


def check_packed(key: Tensor, kv_heads: int, head_dim: int, key_ends: Sequence[int]) -> None:
    """Of attention without a table, where key lengths are cumulative as well."""
    rule = "cumulative without a leading 0"
    _require(_rises(key_ends), _ATTENTION, "actual_seq_lengths_kv", rule, key_ends)
    expected = (key_ends[-1], kv_heads, head_dim)
    _require(tuple(key.shape) == expected, _ATTENTION, "key", f"[rows, heads, head_dim] {expected}", tuple(key.shape))


def check_paged(
    query_ends: Sequence[int],
    key_lengths: Sequence[int],
    table: Tensor,
    block_size: int,
    mask: Tensor,
    sparse_mode: int,
) -> None:
    """Of causal attention over the paged cache, once for all layers."""
    new = [end - start for start, end in zip([0, *query_ends], query_ends, strict=False)]
    short = [kv for n, kv in zip(new, key_lengths, strict=True) if kv < n]
    _require(not short, _ATTENTION, "actual_seq_lengths_kv", "each at least its new tokens", short)
    long = [kv for n, kv in zip(new, key_lengths, strict=True) if n == 1 and kv > _MAX_DECODE_LENGTH]
    rule = f"at most {_MAX_DECODE_LENGTH} beside one new token"
    _require(not long, _ATTENTION, "actual_seq_lengths_kv", rule, long)
    _require(table.dtype == torch.int32, _ATTENTION, "block_table", "int32", table.dtype)
    _require(table.is_contiguous(), _ATTENTION, "block_table", "contiguous", table.stride())
    rows = len(key_lengths)
    _require(table.shape[0] == rows, _ATTENTION, "block_table", f"a row for each of {rows} sequences", table.shape[0])
    columns = -(-max(key_lengths) // block_size)
    rule = f"a column for each of {columns} blocks"
    _require(table.shape[1] >= columns, _ATTENTION, "block_table", rule, table.shape[1])
    _require(sparse_mode == 3, _ATTENTION, "sparse_mode", "3 with a table", sparse_mode)
    found = f"{mask.dtype} {tuple(mask.shape)}"
    expected = f"torch.int8 {(CAUSAL_MASK, CAUSAL_MASK)}"
    _require(found == expected, _ATTENTION, "atten_mask", expected, found)


def check_attention(query: Tensor, key: Tensor, value: Tensor, kv_heads: int, query_end: int) -> None:
    """Of every attention call. query_end: the last of the query's lengths."""
    _, heads, dim = query.shape
    check_heads(heads, kv_heads, dim)
    _require(dim in HEAD_DIMS, _ATTENTION, "query", f"head_dim one of {HEAD_DIMS}", dim)
    _require(query.dtype in DTYPES, _ATTENTION, "query", "bfloat16 or float16", query.dtype)
    _require(key.dtype == value.dtype == query.dtype, _ATTENTION, "key, value", f"{query.dtype}", key.dtype)
    for argument, x in (("query", query), ("key", key), ("value", value)):
        _require(x.is_contiguous(), _ATTENTION, argument, "contiguous", x.stride())
    rule = f"the shape of key {tuple(key.shape)}"
    _require(key.shape == value.shape, _ATTENTION, "value", rule, tuple(value.shape))
    rule = f"the last is the query's {query.shape[0]} rows"
    _require(query_end == query.shape[0], _ATTENTION, "actual_seq_lengths", rule, query_end)


def check_paged_keys(key: Tensor, kv_heads: int, head_dim: int, block_size: int, blocks: int) -> None:
    """blocks: how many all sequences name together, shared ones counted each time."""
    expected = (block_size, kv_heads * head_dim)
    rule = f"[blocks, block_size, heads * head_dim] {expected}"
    _require(tuple(key.shape[1:]) == expected, _ATTENTION, "key", rule, tuple(key.shape))
    rule = f"names at most the cache's {key.shape[0]} blocks, shared ones counted each time"
    _require(blocks <= key.shape[0], _ATTENTION, "block_table", rule, blocks)


def check_cache_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    whole = slots.dim() == 1 and slots.dtype in (torch.int32, torch.int64)
    _require(whole, _CACHE, "slot_mapping", "int32 or int64 [tokens]", f"{slots.dtype} {tuple(slots.shape)}")
    _require(slots.is_contiguous(), _CACHE, "slot_mapping", "contiguous", slots.stride())
    for argument, x, cache in (("key", key, key_cache), ("value", value, value_cache)):
        _require(cache.dim() == 4, _CACHE, f"{argument}_cache", "four dimensions", tuple(cache.shape))
        expected = (slots.shape[0], *cache.shape[2:])
        _require(tuple(x.shape) == expected, _CACHE, argument, f"[tokens, heads, head_dim] {expected}", tuple(x.shape))
        _require(x.dtype == cache.dtype, _CACHE, argument, f"the cache's {cache.dtype}", x.dtype)
        _require(x.is_contiguous(), _CACHE, argument, "contiguous", x.stride())
        _require(cache.is_contiguous(), _CACHE, f"{argument}_cache", "contiguous", cache.stride())


def check_norm(x: Tensor, weight: Tensor) -> None:
    _require(2 <= x.dim() <= 8, _NORM, "input", "two to eight dimensions", x.dim())
    _check_weight(_NORM, x, weight)


def check_add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    _require(x.numel() > 0, _ADD_NORM, "x1", "not empty", tuple(x.shape))
    rule = f"like x1, {x.dtype} {tuple(x.shape)}"
    like = residual.shape == x.shape and residual.dtype == x.dtype
    _require(like, _ADD_NORM, "x2", rule, f"{residual.dtype} {tuple(residual.shape)}")
    _check_weight(_ADD_NORM, x, weight)


def _check_weight(operator: str, x: Tensor, weight: Tensor) -> None:
    _require(x.dtype in DTYPES, operator, "input", "bfloat16 or float16", x.dtype)
    _require(weight.dtype == x.dtype, operator, "gamma", f"{x.dtype}", weight.dtype)
    expected = tuple(x.shape[-1:])
    _require(tuple(weight.shape) == expected, operator, "gamma", f"{expected}", tuple(weight.shape))


def check_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Layout [tokens, heads, head_dim]. cos and sin lie in [-1, 1], which is not read here."""
    _require(x.dim() == 3, _ROTARY, "input", "[tokens, heads, head_dim]", tuple(x.shape))
    rows, heads, dim = x.shape
    _require(dim % 2 == 0 and dim < 896, _ROTARY, "input", "head_dim even and below 896", dim)
    _require(heads <= _MAX_ROTARY_HEADS, _ROTARY, "input", f"at most {_MAX_ROTARY_HEADS} heads", heads)
    for argument, factors in (("r1", cos), ("r2", sin)):
        expected, shape = (rows, 1, dim), tuple(factors.shape)
        _require(shape == expected, _ROTARY, argument, f"[tokens, 1, head_dim] {expected}", shape)
        _require(factors.dtype == x.dtype, _ROTARY, argument, f"{x.dtype}", factors.dtype)


def check_swiglu(x: Tensor) -> None:
    _require(x.numel() > 0, _SWIGLU, "input", "not empty", tuple(x.shape))
    _require(x.shape[-1] % 2 == 0, _SWIGLU, "input", "an even last dimension", x.shape[-1])
    _require(x.is_contiguous(), _SWIGLU, "input", "contiguous", x.stride())


def check_dtype(dtype: torch.dtype) -> None:
    """Of all that a network computes with."""
    _require(dtype in DTYPES, _ATTENTION, "dtype", "bfloat16 or float16", dtype)


def _rises(lengths: Sequence[int]) -> bool:
    return all(a < b for a, b in zip([0, *lengths], lengths, strict=False))
