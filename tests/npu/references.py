"""What each operator of the table computes, on CPU tensors, from the vendor's documentation.

Written apart from model/ops/npu.py, and strict: what CANN refuses at launch is refused here. Each takes its operator's
own arguments and returns fresh tensors: one, a tuple, or nothing where the operator writes in place. Arithmetic is
float32, rounded once to the dtype of the output.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)
CAUSAL_MASK = 2048  # side of the compressed mask that the sparse modes take


class Refused(ValueError):
    """CANN would refuse these arguments (its code 561002 or 161002)."""


def refuse_unless(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(why)


def fused_infer_attention_score(
    query: Tensor, key: Tensor, value: Tensor, *, input_layout: str = "BSH", **rest: Any
) -> tuple[Tensor, Tensor]:
    """Layout TND, and BSND of one token each over a table. Sparse modes 0, 2 and 3."""
    if input_layout == "BSND":
        one = query.dim() == 4 and query.shape[1] == 1 and rest.get("block_table") is not None
        bare = one and not rest.get("sparse_mode") and "actual_seq_lengths" not in rest
        refuse_unless(bare, "BSND is emulated for one token each, over a table, without a mask")
        ends = list(range(1, len(query) + 1))
        mixed, sums = _packed_attention(query[:, 0], key, value, actual_seq_lengths=ends, **rest)
        return mixed[:, None], sums
    refuse_unless(input_layout == "TND", f"layout {input_layout} is not emulated")
    return _packed_attention(query, key, value, **rest)


def _packed_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    atten_mask: Tensor | None = None,
    actual_seq_lengths: Sequence[int] | None = None,
    actual_seq_lengths_kv: Sequence[int] | None = None,
    block_table: Tensor | None = None,
    num_heads: int = 1,
    scale: float = 1.0,
    num_key_value_heads: int = 0,
    sparse_mode: int = 0,
    inner_precise: int = 0,
    block_size: int = 0,
    **others: Any,
) -> tuple[Tensor, Tensor]:
    for name, given in others.items():
        unused = given is None or given is False or given == 0 or given == 2**31 - 1
        refuse_unless(unused, f"{name} is not part of what is emulated")
    refuse_unless(inner_precise == 0, f"inner_precise {inner_precise} is not emulated")
    refuse_unless(query.dim() == 3, "TND: query has three dimensions")
    rows, heads, dim = query.shape
    kv_heads = num_key_value_heads or num_heads
    _check_tensors(query, key, value, num_heads, kv_heads)
    refuse_unless(actual_seq_lengths is not None and actual_seq_lengths_kv is not None, "TND wants both lengths")
    assert actual_seq_lengths is not None and actual_seq_lengths_kv is not None  # for the type checker
    ends, kv = list(actual_seq_lengths), list(actual_seq_lengths_kv)
    refuse_unless(1 <= len(ends) <= 4096, "a batch has 1 to 4096 sequences")
    refuse_unless(all(a <= b for a, b in zip([0, *ends], ends, strict=False)), "query lengths are cumulative")
    refuse_unless(ends[-1] == rows, "the last of the query lengths is the number of rows")
    refuse_unless(len(kv) >= len(ends), "there are as many key lengths as query lengths")
    starts = [0, *ends[:-1]]
    _check_mask(atten_mask, sparse_mode)
    if block_table is None:
        pick = _packed(key, value, kv, kv_heads, dim)
    else:
        pick = _paged(
            key, value, block_table, kv[: len(ends)], kv_heads, dim, block_size, grouped=query.shape[1] != kv_heads
        )
        if max(b - a for a, b in zip(starts, ends, strict=True)) > 1:
            refuse_unless(block_size % 128 == 0 and block_size <= 512, "block_size: a multiple of 128, at most 512")
    out = torch.empty_like(query)
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        if end == start:
            continue
        keys, values = (x.float().repeat_interleave(heads // kv_heads, 1) for x in pick(i))
        scores = torch.einsum("qhd,khd->hqk", query[start:end].float(), keys) * scale
        seen = len(keys) if block_table is None else kv[i]
        scores[..., seen:] = float("-inf")  # whole blocks are read, and multiplied by 0 behind an end
        if sparse_mode:
            assert atten_mask is not None
            scores[..., :seen].masked_fill_(_hidden(atten_mask, sparse_mode, end - start, seen), float("-inf"))
        mixed = torch.einsum("hqk,khd->qhd", torch.softmax(scores, dim=-1), values)
        out[start:end] = mixed.to(query.dtype)
    return out, torch.empty(0, dtype=torch.float32)


def _check_tensors(query: Tensor, key: Tensor, value: Tensor, num_heads: int, kv_heads: int) -> None:
    _, heads, dim = query.shape
    refuse_unless(heads == num_heads <= 256, "the query's heads are num_heads, at most 256")
    refuse_unless(heads % kv_heads == 0 and heads // kv_heads <= 64, "heads are 1 to 64 times the key-value heads")
    refuse_unless(dim in (64, 128, 192), "query, key and value have heads of 64, 128 or 192")
    shared = heads != kv_heads or query.dtype == torch.bfloat16
    refuse_unless(shared, "packed tokens whose heads share no keys are bfloat16")
    for name, x in (("query", query), ("key", key), ("value", value)):
        refuse_unless(x.dtype in HALF and x.dtype == query.dtype, f"{name}: one dtype, float16 or bfloat16")
        refuse_unless(x.is_contiguous(), f"{name} is not contiguous")
    refuse_unless(key.shape == value.shape, "key and value have one shape")


def _check_mask(mask: Tensor | None, sparse_mode: int) -> None:
    if sparse_mode == 0:
        # One of shape [1, 1, 1, S] is ignored behind position 512.
        refuse_unless(mask is None, "sparse_mode 0 is emulated without a mask only")
        return
    refuse_unless(sparse_mode in (2, 3), f"sparse_mode {sparse_mode} is not emulated")
    refuse_unless(mask is not None, "the causal modes take a mask")
    assert mask is not None
    refuse_unless(mask.shape[-2:] == (CAUSAL_MASK, CAUSAL_MASK), "the mask is 2048 x 2048")
    refuse_unless(mask.dtype in (torch.bool, torch.int8, torch.uint8), "the mask is bool, int8 or uint8")
    refuse_unless(mask.is_contiguous(), "the mask is not contiguous")


def _hidden(mask: Tensor, sparse_mode: int, rows: int, columns: int) -> Tensor:
    """bool [rows, columns]: what the kernel reads in the compressed mask, shifted to where the sequence's diagonal is.

    Mode 2 starts the diagonal at the top left, mode 3 ends it at the bottom right. One row alone sees everything.
    """
    if rows == 1:
        return torch.zeros((1, columns), dtype=torch.bool)
    shift = columns - rows if sparse_mode == 3 else 0
    ahead = torch.arange(columns)[None] - torch.arange(rows)[:, None] - shift  # keys ahead of the row's own
    side = mask.reshape(-1, CAUSAL_MASK)
    last = CAUSAL_MASK - 1
    above, below = side[0, ahead.clamp(0, last)], side[(-ahead).clamp(0, last), 0]
    return torch.where(ahead > 0, above, below).bool()


def _packed(
    key: Tensor, value: Tensor, ends: Sequence[int], kv_heads: int, dim: int
) -> Callable[[int], tuple[Tensor, Tensor]]:
    refuse_unless(key.dim() == 3 and tuple(key.shape[1:]) == (kv_heads, dim), "without a table key is [S, heads, D]")
    refuse_unless(all(a <= b for a, b in zip([0, *ends], ends, strict=False)), "key lengths are cumulative")
    refuse_unless(ends[-1] == len(key), "the last of the key lengths is the number of rows")

    def pick(i: int) -> tuple[Tensor, Tensor]:
        rows = slice(ends[i - 1] if i else 0, ends[i])
        return key[rows], value[rows]

    return pick


def _paged(
    key: Tensor,
    value: Tensor,
    table: Tensor,
    lengths: Sequence[int],
    kv_heads: int,
    dim: int,
    block_size: int,
    *,
    grouped: bool,
) -> Callable[[int], tuple[Tensor, Tensor]]:
    refuse_unless(table.dtype == torch.int32 and table.dim() == 2, "block_table is int32 [sequences, blocks]")
    refuse_unless(table.is_contiguous(), "block_table is not contiguous")
    refuse_unless(len(table) >= len(lengths), "block_table has a row for each sequence")
    refuse_unless(block_size % 16 == 0 and 0 < block_size <= 1024, "block_size: a multiple of 16, at most 1024")
    refuse_unless(key.dim() == 3 and tuple(key.shape[1:]) == (block_size, kv_heads * dim), "a paged key is BnBsH")
    refuse_unless(key.shape[2] <= 65535, "H of BnBsH is at most 65535")
    blocks = [-(-n // block_size) for n in lengths]
    refuse_unless(min(lengths) >= 0 and max(blocks) <= table.shape[1], "block_table has a column for each block")
    refuse_unless(grouped or sum(blocks) <= len(key), "the cache has as many blocks as the sequences together")

    def pick(i: int) -> tuple[Tensor, Tensor]:
        own = table[i, : blocks[i]].long()
        keys, values = (x.index_select(0, own).reshape(-1, kv_heads, dim) for x in (key, value))
        return keys, values

    return pick


def scatter_pa_kv_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    compress_lens: Tensor | None = None,
    compress_seq_offsets: Tensor | None = None,
    seq_lens: Tensor | None = None,
    cache_mode: str | None = "PA_NZ",
) -> None:
    """Cache mode "Norm" only; writes into both caches."""
    refuse_unless(cache_mode in ("Norm", None), f"cache_mode {cache_mode} is not emulated")
    unused = compress_lens is None and compress_seq_offsets is None and seq_lens is None
    refuse_unless(unused, "compression is not emulated")
    refuse_unless(slot_mapping.dtype in (torch.int32, torch.int64) and slot_mapping.dim() == 1, "slots: int32 or int64")
    refuse_unless(slot_mapping.is_contiguous(), "slot_mapping is not contiguous")
    slots = slot_mapping.long()
    for name, x, cache in (("key", key, key_cache), ("value", value, value_cache)):
        refuse_unless(x.dim() == 3 and cache.dim() == 4, f"{name} has three dimensions, its cache four")
        refuse_unless(x.dtype == cache.dtype == key.dtype, f"{name}: one dtype")
        refuse_unless(x.is_contiguous() and cache.is_contiguous(), f"{name} or its cache is not contiguous")
        refuse_unless(tuple(x.shape) == (len(slots), *cache.shape[2:]), f"{name} fits neither its slots nor its cache")
        limit = cache.shape[0] * cache.shape[1]
        refuse_unless(bool(((slots >= 0) & (slots < limit)).all()), "slots lie inside the cache")
        refuse_unless(slots.unique().numel() == slots.numel(), "no slot comes twice")
        cache.view(limit, *cache.shape[2:])[slots] = x


def _norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + epsilon)
    return (wide * rstd * gamma.float()).to(x.dtype), rstd


def rms_norm(input: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """(the norm, times gamma before it is rounded; rstd)"""
    refuse_unless(2 <= input.dim() <= 8, "two to eight dimensions")
    refuse_unless(gamma.dim() == 1 and gamma.shape[0] == input.shape[-1], "gamma is as long as the last dimension")
    refuse_unless(gamma.dtype in (input.dtype, torch.float32), "gamma has the input's dtype, or float32")
    return _norm(input, gamma, epsilon)


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor, Tensor]:
    """(the norm of the sum, rstd, the sum)"""
    refuse_unless(x1.numel() > 0, "empty tensors are not supported")
    refuse_unless(x1.shape == x2.shape and x1.dtype == x2.dtype == gamma.dtype, "one shape and one dtype")
    refuse_unless(gamma.dim() == 1 and gamma.shape[0] == x1.shape[-1], "gamma is as long as the last dimension")
    total = (x1.float() + x2.float()).to(x1.dtype)
    return (*_norm(total, gamma, epsilon), total)


def rotary_mul(
    input: Tensor, r1: Tensor, r2: Tensor, rotary_mode: str = "half", rotate: Tensor | None = None
) -> Tensor:
    """Mode "half" of a TND input with cos and sin T1D."""
    refuse_unless(rotary_mode == "half" and rotate is None, "only the mode half is emulated")
    refuse_unless(input.dim() == 3, "only TND is emulated")
    rows, heads, dim = input.shape
    refuse_unless(dim % 2 == 0 and dim < 896, "D is even and below 896")
    refuse_unless(heads < 1000, "N is below 1000")
    for name, x in (("cos", r1), ("sin", r2)):
        refuse_unless(tuple(x.shape) == (rows, 1, dim), f"{name} is [T, 1, D]")
        refuse_unless(x.dtype == input.dtype, f"{name} has the input's dtype")
        refuse_unless(bool((x.abs() <= 1).all()), f"{name} lies in [-1, 1]")
    wide, half = input.float(), dim // 2
    turned = torch.cat([-wide[..., half:], wide[..., :half]], dim=-1)
    return (r1.float() * wide + r2.float() * turned).to(input.dtype)


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """The first half through SiLU, times the second."""
    refuse_unless(input.numel() > 0, "empty tensors are not supported")
    refuse_unless(input.is_contiguous(), "the input is not contiguous")
    refuse_unless(input.shape[dim] % 2 == 0, "the split dimension is even")
    gate, up = input.float().chunk(2, dim)
    return (gate / (1 + torch.exp(-gate)) * up).to(input.dtype)


def fast_gelu(input: Tensor) -> Tensor:
    """x / (1 + exp(-1.702 x)), the formula of A2 and A3."""
    wide = input.float()
    return (wide / (1 + torch.exp(-1.702 * wide))).to(input.dtype)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """Exact, or by tanh."""
    wide = input.float()
    if approximate == "none":
        curve = torch.erf(wide / math.sqrt(2))
    else:
        refuse_unless(approximate == "tanh", f"approximate {approximate} is unknown")
        curve = torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))
    return (0.5 * wide * (1 + curve)).to(input.dtype)


REFERENCES: dict[str, Callable[..., Any]] = {
    "npu_fused_infer_attention_score": fused_infer_attention_score,
    "npu_scatter_pa_kv_cache": scatter_pa_kv_cache,
    "npu_rms_norm": rms_norm,
    "npu_add_rms_norm": add_rms_norm,
    "npu_rotary_mul": rotary_mul,
    "npu_swiglu": swiglu,
    "npu_fast_gelu": fast_gelu,
    "npu_gelu": gelu,
}
