"""What the documentation of Ascend's fused operators demands of their arguments, as far as our calls can break it.

The operators' host code lets most of it through, and the device then fails with a number or computes something else.
Each rule is asked of shapes, strides, dtypes and host ints: nothing is read from the device. A broken one raises
RuleError. What a network or a step determines is asked always, what a launch does only where npu_checked.py asks.
"""

from collections.abc import Sequence
from itertools import islice
from operator import lt

import torch
from torch import Tensor

DTYPE = torch.bfloat16  # attention over packed tokens takes no float16 where heads do not share keys
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

    def __init__(self, operator: str, argument: str, rule: str, value: object) -> None:
        super().__init__(f"{operator}, {argument}, {rule}, {value}")


def padded_head_dim(head_dim: int) -> int:
    """The narrowest head that attention takes and `head_dim` fits into."""
    for dim in HEAD_DIMS:
        if head_dim <= dim:
            return dim
    raise RuleError(_ATTENTION, "head_dim", f"at most {HEAD_DIMS[-1]}", head_dim)


def check_dtype(dtype: torch.dtype) -> None:
    """Of all that a network computes with."""
    if dtype != DTYPE:
        raise RuleError(_ATTENTION, "dtype", "bfloat16", dtype)


def check_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Of a network, when it is built."""
    padded_head_dim(head_dim)
    if head_dim % 2:
        raise RuleError(_ROTARY, "head_dim", "even", head_dim)
    if heads > _MAX_HEADS:
        raise RuleError(_ATTENTION, "num_heads", f"at most {_MAX_HEADS}", heads)
    if heads % kv_heads:
        raise RuleError(_ATTENTION, "num_key_value_heads", f"divides num_heads {heads}", kv_heads)
    if heads > _MAX_SHARING * kv_heads:
        raise RuleError(_ATTENTION, "num_key_value_heads", f"at least num_heads {heads} / {_MAX_SHARING}", kv_heads)


def check_cache(block_size: int, kv_heads: int, padded_dim: int) -> None:
    """Of the paged cache, when it is made."""
    if block_size % 128 or not 128 <= block_size <= 512:
        raise RuleError(_ATTENTION, "block_size", "a multiple of 128, at most 512", block_size)
    width = kv_heads * padded_dim
    if width > _MAX_BLOCK_WIDTH:
        raise RuleError(_ATTENTION, "key", f"num_key_value_heads * head_dim at most {_MAX_BLOCK_WIDTH}", width)


def check_lengths(query_ends: Sequence[int], key_lengths: Sequence[int]) -> None:
    """Of both lists of lengths, once for all layers."""
    for argument, lengths in (("actual_seq_lengths", query_ends), ("actual_seq_lengths_kv", key_lengths)):
        if type(lengths) is not list or set(map(type, lengths)) != {int}:
            raise RuleError(_ATTENTION, argument, "a list of host ints", type(lengths).__name__)
    count = len(query_ends)
    if count > MAX_SEQUENCES:
        raise RuleError(_ATTENTION, "actual_seq_lengths", f"at most {MAX_SEQUENCES} sequences", count)
    if not _rises(query_ends):
        raise RuleError(_ATTENTION, "actual_seq_lengths", "cumulative without a leading 0", query_ends)
    if len(key_lengths) != count:
        rule = f"as many as actual_seq_lengths, {count}"
        raise RuleError(_ATTENTION, "actual_seq_lengths_kv", rule, len(key_lengths))


def check_packed(key: Tensor, kv_heads: int, head_dim: int, key_ends: Sequence[int]) -> None:
    """Of attention without a table, where key lengths are cumulative as well."""
    if not _rises(key_ends):
        raise RuleError(_ATTENTION, "actual_seq_lengths_kv", "cumulative without a leading 0", key_ends)
    _check_shape(_ATTENTION, "key", key, (key_ends[-1], kv_heads, head_dim))


def check_paged(
    query_ends: Sequence[int],
    key_lengths: Sequence[int],
    table: Tensor,
    block_size: int,
    mask: Tensor | None,
    sparse_mode: int,
) -> None:
    """Of causal attention over the paged cache, once for all layers. A step of one new token each has no mask."""
    start = 0
    for end, seen in zip(query_ends, key_lengths, strict=True):
        if seen < end - start:
            raise RuleError(_ATTENTION, "actual_seq_lengths_kv", f"at least its {end - start} new tokens", seen)
        if seen > _MAX_DECODE_LENGTH and end - start == 1:
            rule = f"at most {_MAX_DECODE_LENGTH} beside one new token"
            raise RuleError(_ATTENTION, "actual_seq_lengths_kv", rule, seen)
        start = end
    if table.dtype != torch.int32:
        raise RuleError(_ATTENTION, "block_table", "int32", table.dtype)
    _check_contiguous(_ATTENTION, "block_table", table)
    rows, columns = len(key_lengths), -(-max(key_lengths) // block_size)
    if table.shape[0] != rows:
        raise RuleError(_ATTENTION, "block_table", f"a row for each of {rows} sequences", table.shape[0])
    if table.shape[1] < columns:
        raise RuleError(_ATTENTION, "block_table", f"a column for each of {columns} blocks", table.shape[1])
    _check_mask(mask, sparse_mode, alone=query_ends[-1] == rows)


def _check_mask(mask: Tensor | None, sparse_mode: int, *, alone: bool) -> None:
    """alone: no sequence has more than one new token."""
    if mask is None:
        if sparse_mode != 0:
            raise RuleError(_ATTENTION, "sparse_mode", "0 without a mask", sparse_mode)
        if not alone:
            raise RuleError(_ATTENTION, "atten_mask", "given beside several new tokens", None)
        return
    if alone:
        raise RuleError(_ATTENTION, "atten_mask", "none beside one new token each", tuple(mask.shape))
    if sparse_mode != 3:
        raise RuleError(_ATTENTION, "sparse_mode", "3 with a table and a mask", sparse_mode)
    if mask.dtype != torch.int8:
        raise RuleError(_ATTENTION, "atten_mask", "int8", mask.dtype)
    _check_shape(_ATTENTION, "atten_mask", mask, (CAUSAL_MASK, CAUSAL_MASK))


def check_attention(query: Tensor, key: Tensor, value: Tensor, query_end: int) -> None:
    """Of every attention call. query_end: the last of the query's lengths."""
    rows, dim = query.shape[0], query.shape[-1]
    if dim not in HEAD_DIMS:
        raise RuleError(_ATTENTION, "query", f"head_dim one of {HEAD_DIMS}", dim)
    check_dtype(query.dtype)
    if not key.dtype == value.dtype == query.dtype:
        raise RuleError(_ATTENTION, "key, value", f"{query.dtype}", f"{key.dtype}, {value.dtype}")
    _check_contiguous(_ATTENTION, "query", query)
    _check_contiguous(_ATTENTION, "key", key)
    _check_contiguous(_ATTENTION, "value", value)
    if key.shape != value.shape:
        raise RuleError(_ATTENTION, "value", f"the shape of key {tuple(key.shape)}", tuple(value.shape))
    if query_end != rows:
        raise RuleError(_ATTENTION, "actual_seq_lengths", f"the last is the query's {rows} rows", query_end)


def check_graph_layout(layout: str, heads: int, kv_heads: int) -> None:
    """Of attention that a graph captures."""
    wanted = "BSND" if heads == kv_heads else "TND"
    if layout != wanted:
        raise RuleError(_ATTENTION, "input_layout", f"{wanted} in a graph of {heads} heads over {kv_heads}", layout)


def check_workspace(workspace: Tensor) -> None:
    if workspace.dtype != torch.uint8:
        raise RuleError(_ATTENTION, "workspace", "uint8", workspace.dtype)


def check_paged_keys(key: Tensor, kv_heads: int, head_dim: int, block_size: int, blocks: int) -> None:
    """blocks: how many all sequences name together, shared ones counted each time; 0 of grouped queries."""
    held = key.shape[0]
    _check_shape(_ATTENTION, "key", key, (held, block_size, kv_heads * head_dim))
    check_table_blocks(blocks, held)


def check_table_blocks(blocks: int, held: int) -> None:
    """blocks: as above; held: those of the cache."""
    if blocks > held:
        rule = f"names at most the cache's {held} blocks, shared ones counted each time"
        raise RuleError(_ATTENTION, "block_table", rule, blocks)


def check_cache_write(key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> None:
    """The slots themselves lie on the device: that none is -1 and none comes twice is the caller's."""
    if slots.dtype != torch.int64 and slots.dtype != torch.int32:
        raise RuleError(_CACHE, "slot_mapping", "int32 or int64", slots.dtype)
    _check_contiguous(_CACHE, "slot_mapping", slots)
    rows = slots.numel()
    _check_shape(_CACHE, "slot_mapping", slots, (rows,))
    for argument, x, cache in (("key", key, key_cache), ("value", value, value_cache)):
        if cache.dim() != 4:
            raise RuleError(_CACHE, f"{argument}_cache", "four dimensions", tuple(cache.shape))
        _, _, kv_heads, dim = cache.shape
        _check_shape(_CACHE, argument, x, (rows, kv_heads, dim))
        if x.dtype != cache.dtype:
            raise RuleError(_CACHE, argument, f"the cache's {cache.dtype}", x.dtype)
        _check_contiguous(_CACHE, argument, x)
        _check_contiguous(_CACHE, f"{argument}_cache", cache)


def check_norm(x: Tensor, weight: Tensor) -> None:
    if not 2 <= x.dim() <= 8:
        raise RuleError(_NORM, "input", "two to eight dimensions", x.dim())
    _check_weight(_NORM, x, weight)


def check_add_norm(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    if not x.numel():
        raise RuleError(_ADD_NORM, "x1", "not empty", tuple(x.shape))
    if residual.dtype != x.dtype:
        raise RuleError(_ADD_NORM, "x2", f"{x.dtype}", residual.dtype)
    if residual.shape != x.shape:
        raise RuleError(_ADD_NORM, "x2", f"the shape of x1 {tuple(x.shape)}", tuple(residual.shape))
    _check_weight(_ADD_NORM, x, weight)


def check_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Layout [tokens, heads, head_dim]. cos and sin lie in [-1, 1], which is not read here."""
    if x.dim() != 3:
        raise RuleError(_ROTARY, "input", "[tokens, heads, head_dim]", tuple(x.shape))
    rows, heads, dim = x.shape
    if dim % 2 or dim >= 896:
        raise RuleError(_ROTARY, "input", "head_dim even and below 896", dim)
    if heads > _MAX_ROTARY_HEADS:
        raise RuleError(_ROTARY, "input", f"at most {_MAX_ROTARY_HEADS} heads", heads)
    for argument, factors in (("r1", cos), ("r2", sin)):
        _check_shape(_ROTARY, argument, factors, (rows, 1, dim))
        if factors.dtype != x.dtype:
            raise RuleError(_ROTARY, argument, f"{x.dtype}", factors.dtype)


def check_swiglu(x: Tensor) -> None:
    if not x.numel():
        raise RuleError(_SWIGLU, "input", "not empty", tuple(x.shape))
    if x.shape[-1] % 2:
        raise RuleError(_SWIGLU, "input", "an even last dimension", x.shape[-1])
    _check_contiguous(_SWIGLU, "input", x)


def _check_weight(operator: str, x: Tensor, weight: Tensor) -> None:
    if weight.dtype != x.dtype:
        raise RuleError(operator, "gamma", f"{x.dtype}", weight.dtype)
    _check_shape(operator, "gamma", weight, (x.shape[-1],))


def _check_shape(operator: str, argument: str, x: Tensor, expected: tuple[int, ...]) -> None:
    if x.shape != expected:
        raise RuleError(operator, argument, f"shape {expected}", tuple(x.shape))


def _check_contiguous(operator: str, argument: str, x: Tensor) -> None:
    if not x.is_contiguous():
        raise RuleError(operator, argument, "contiguous", f"strides {x.stride()}")


def _rises(lengths: Sequence[int]) -> bool:
    """Whether each is above the one before it, and the first above 0."""
    return lengths[0] > 0 and all(map(lt, lengths, islice(lengths, 1, None)))
