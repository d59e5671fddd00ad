"""Causal attention over a paged cache in plain torch: one step's plan and its execution."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

_QUERY_BLOCK = 256  # query rows attended at once after a cached past: bounds the mask at 256 x the longest sequence
_GROUP_TOKENS = 16384  # padded tokens gathered at once for decodes: bounds the copy
_FREE_PADDING = 512  # tokens of padding that cost less than one more kernel call

Rows = slice | Tensor  # which rows of a tensor: consecutive ones as a view, others as int64 indices


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Several new tokens of one sequence."""

    rows: slice  # of the batch
    slots: Rows  # where the sequence's cached tokens lie, in order
    past: int  # cached tokens before this chunk


@dataclass(frozen=True, slots=True, kw_only=True)
class _Decodes:
    """One new token each of sequences of similar length, padded to the longest."""

    rows: Rows  # of the batch, [n]
    slots: Rows  # [n * longest]; padding repeats a sequence's own last token
    longest: int
    mask: Tensor | None  # [n, 1, 1, longest]: 0 or -inf; None for a single sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedPlan:
    """The PagedAttention of one step."""

    chunks: tuple[_Chunk, ...]
    decodes: tuple[_Decodes, ...]
    mask: Tensor | None  # [rows, longest]: right-aligned causal; every chunk with a past uses a corner of it

    def __call__(self, query: Tensor, key_cache: Tensor, value_cache: Tensor) -> Tensor:
        keys, values = key_cache.flatten(0, 1), value_cache.flatten(0, 1)  # [slots, kv_heads, d]
        if not self.chunks and len(self.decodes) == 1 and isinstance(self.decodes[0].rows, slice):
            return _attend_decodes(self.decodes[0], query, keys, values)
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        for group in self.decodes:
            found = _attend_decodes(group, _pick(query, group.rows), keys, values)
            if isinstance(group.rows, slice):
                out[group.rows] = found
            else:
                out.index_copy_(0, group.rows, found)
        for chunk in self.chunks:
            self._attend_chunk(chunk, query, keys, values, out)
        return out

    def _attend_chunk(self, chunk: _Chunk, query: Tensor, keys: Tensor, values: Tensor, out: Tensor) -> None:
        k = _pick(keys, chunk.slots).transpose(0, 1)[None]  # [1, kv_heads, kv, d]
        v = _pick(values, chunk.slots).transpose(0, 1)[None]
        gqa = query.shape[1] != k.shape[1]
        if chunk.past == 0:
            q = query[chunk.rows].transpose(0, 1)[None]  # [1, heads, n, d]
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
            out[chunk.rows] = found[0].transpose(0, 1)
            return
        assert self.mask is not None
        for start in range(chunk.rows.start, chunk.rows.stop, _QUERY_BLOCK):
            stop = min(start + _QUERY_BLOCK, chunk.rows.stop)
            seen = chunk.past + stop - chunk.rows.start  # keys that the last of these rows sees
            q = query[start:stop].transpose(0, 1)[None]
            mask = self.mask[start - stop :, self.mask.shape[1] - seen :]
            found = F.scaled_dot_product_attention(q, k[:, :, :seen], v[:, :, :seen], attn_mask=mask, enable_gqa=gqa)
            out[start:stop] = found[0].transpose(0, 1)


def plan_paged_attention(
    q_lens: Sequence[int], kv_lens: Sequence[int], block_tables: Tensor, block_size: int, dtype: torch.dtype
) -> PagedPlan:
    """Arguments as those of Ops.plan_attention; `dtype` is that of the queries."""
    device = block_tables.device
    chunks = []
    single: list[tuple[int, int]] = []  # (sequence, batch row) of each decode
    row = 0
    for i, (n, kv) in enumerate(zip(q_lens, kv_lens, strict=True)):
        if n == 1:
            single.append((i, row))
        else:
            slots = _slots_of(block_tables[i], kv, block_size)
            chunks.append(_Chunk(rows=slice(row, row + n), slots=slots, past=kv - n))
        row += n
    late = [chunk for chunk in chunks if chunk.past]
    mask = None
    if late:
        height = min(_QUERY_BLOCK, max(chunk.rows.stop - chunk.rows.start for chunk in late))
        width = max(chunk.past + chunk.rows.stop - chunk.rows.start for chunk in late)
        mask = torch.full((height, width), float("-inf"), dtype=dtype, device=device).triu_(width - height + 1)
    groups = [
        _plan_decodes(group, kv_lens, block_tables, block_size, dtype) for group in _group_by_length(single, kv_lens)
    ]
    return PagedPlan(chunks=tuple(chunks), decodes=tuple(groups), mask=mask)


def _group_by_length(single: list[tuple[int, int]], kv_lens: Sequence[int]) -> list[list[tuple[int, int]]]:
    """Group decodes while padding to the longest wastes at most a quarter, or _FREE_PADDING tokens more."""
    groups: list[list[tuple[int, int]]] = []
    longest = real = 0
    for item in sorted(single, key=lambda item: -kv_lens[item[0]]):
        length = kv_lens[item[0]]
        padded = longest * (len(groups[-1]) + 1) if groups else 0
        if not groups or padded > _GROUP_TOKENS or padded > (real + length) * 4 // 3 + _FREE_PADDING:
            groups.append([])
            longest, real = length, 0
        groups[-1].append(item)
        real += length
    return [sorted(group) for group in groups]


def _plan_decodes(
    group: list[tuple[int, int]], kv_lens: Sequence[int], block_tables: Tensor, block_size: int, dtype: torch.dtype
) -> _Decodes:
    device = block_tables.device
    sequences, rows = [i for i, _ in group], [row for _, row in group]
    lengths = [kv_lens[i] for i in sequences]
    where = slice(rows[0], rows[0] + 1)
    if len(group) == 1:
        slots = _slots_of(block_tables[sequences[0]], lengths[0], block_size)
        return _Decodes(rows=where, slots=slots, longest=lengths[0], mask=None)
    longest = max(lengths)
    ends = _sent(lengths, device)[:, None]
    tables = block_tables.index_select(0, _sent(sequences, device)).long()
    offsets = torch.arange(longest, device=device)[None]  # [1, longest]
    # Padding repeats the sequence's own last token, so that nothing of another request is ever read.
    inside = torch.minimum(offsets, ends - 1)  # [n, longest]
    index = tables.gather(1, inside // block_size) * block_size + inside % block_size
    mask = torch.zeros(inside.shape, dtype=dtype, device=device).masked_fill_(offsets >= ends, float("-inf"))
    together = rows[-1] - rows[0] == len(rows) - 1
    return _Decodes(
        rows=slice(rows[0], rows[-1] + 1) if together else _sent(rows, device),
        slots=index.flatten(),
        longest=longest,
        mask=mask[:, None, None],
    )


def _attend_decodes(group: _Decodes, query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    n, heads, dim = query.shape
    k = _pick(keys, group.slots).view(n, group.longest, -1, dim).transpose(1, 2)  # [n, kv_heads, longest, d]
    v = _pick(values, group.slots).view(n, group.longest, -1, dim).transpose(1, 2)
    # The query heads that share a key-value head stand as query rows: 13 times faster than enable_gqa in bfloat16.
    q = query.unflatten(1, (k.shape[1], -1))  # [n, kv_heads, heads / kv_heads, d]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=group.mask).reshape(n, heads, dim)


def _slots_of(table: Tensor, length: int, block_size: int) -> Rows:
    """Where the first `length` tokens of one sequence lie; consecutive blocks are a view and cost no copy."""
    table = table[: -(-length // block_size)]
    if table.device.type == "cpu":  # elsewhere the host would have to wait for the device
        blocks = table.tolist()
        if blocks == list(range(blocks[0], blocks[0] + len(blocks))):
            return slice(blocks[0] * block_size, blocks[0] * block_size + length)
    offsets = torch.arange(block_size, device=table.device)
    return (table.long()[:, None] * block_size + offsets).flatten()[:length]


def _sent(numbers: list[int], device: torch.device) -> Tensor:
    """int64 on the device, by a copy that nobody waits for."""
    host = torch.tensor(numbers)
    return (host if device.type in ("cpu", "meta") else host.pin_memory()).to(device, non_blocking=True)


def _pick(x: Tensor, rows: Rows) -> Tensor:
    return x[rows] if isinstance(rows, slice) else x.index_select(0, rows)
