"""What of a decoder one rank holds: its heads, its share of the inner channels, its rows of the vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor

from configs.checkpoint import CheckpointError
from model.ops.collectives import Ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """Query head i reads key-value head i // (heads / kv_heads), in the whole as in the part."""

    heads: range
    kv_heads: range  # several ranks hold the same one where there are more ranks than these
    inter: range


def rank_part(ranks: Ranks, *, heads: int, kv_heads: int, inter: int) -> RankPart | None:
    """None: this process holds all. Raises CheckpointError for sizes that so many ranks do not share."""
    n = ranks.n
    if n == 1:
        return None
    sizes = _sizes(heads, kv_heads, inter)
    for words, size, repeats in sizes:
        if not _is_shared(size, n, repeats):
            served = [str(m) for m in range(1, heads + 1) if all(_is_shared(one, m, again) for _, one, again in sizes)]
            raise CheckpointError(
                f"config.json: {n} ranks do not share {size} {words} evenly (ranks that share all: {', '.join(served)})"
            )
    first = ranks.rank * kv_heads // n
    return RankPart(
        heads=_of(ranks, heads), kv_heads=range(first, first + max(kv_heads // n, 1)), inter=_of(ranks, inter)
    )


def vocabulary_part(ranks: Ranks, vocab: int) -> tuple[range, int]:
    """(this rank's rows of a table of `vocab`, how many rows each rank has): behind the last ranks' rows lie zeros."""
    each = -(-vocab // ranks.n)
    first = min(ranks.rank * each, vocab)
    return range(first, min(first + each, vocab)), each


def head_places(places: Tensor, heads: int, kv_heads: int, part: RankPart) -> Tensor:
    """Of rows [heads + 2 kv_heads, head_dim] of queries, keys and values those of a rank, in the same order."""
    of_keys = torch.arange(part.kv_heads.start, part.kv_heads.stop)
    wanted = torch.cat([torch.arange(part.heads.start, part.heads.stop), heads + of_keys, heads + kv_heads + of_keys])
    return places.index_select(0, wanted)


def gate_up_places(inter: int, parts: int, part: range) -> Tensor:
    """int64: where a rank's channels lie among `parts` (gate and up, or up alone) of `inter` rows each."""
    return torch.cat([torch.arange(i * inter + part.start, i * inter + part.stop) for i in range(parts)])


def _of(ranks: Ranks, size: int) -> range:
    each = size // ranks.n
    return range(ranks.rank * each, (ranks.rank + 1) * each)


def _sizes(heads: int, kv_heads: int, inter: int) -> tuple[tuple[str, int, bool], ...]:
    """(in words, how many, whether several ranks may hold the same one)"""
    return (
        ("heads of queries", heads, False),
        ("heads of keys and values", kv_heads, True),
        ("inner channels of the MLP", inter, False),
    )


def _is_shared(size: int, n: int, repeats: bool) -> bool:
    return size % n == 0 or (repeats and n % size == 0)
