"""Weights on disk become linears, several fused into one (qkv, gate and up), embeddings and heads."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from model.net.rank_parts import vocabulary_part
from model.ops.base import Linear, Ops
from model.weight_tensors import WHOLE, Cut
from model.weights import Weights


def take_linear(
    ops: Ops, weights: Weights, name: str, n_out: int, n_in: int, *, bias: bool, columns: Tensor | None = None,
    scale: Tensor | None = None,
) -> Linear:  # fmt: skip
    """`name`.weight [n_out, n_in], and `name`.bias [n_out] if `bias`, prepared.

    columns: int64 [inputs], for each input where it lies among those on disk, -1: nowhere; None: as they lie there.
    scale: float32 [n_out], a factor of each output; the weights hold it from here on.
    """
    if columns is None and scale is None:
        return take_fused(ops, weights, [(name, n_out)], n_in, bias=bias)
    dtype = None if scale is None else torch.float32  # so that it is rounded once
    read, columns = _span(columns, n_in)
    matrix = weights.take(f"{name}.weight", (n_out, n_in), dtype, read)
    vector = weights.take(f"{name}.bias", (n_out,), dtype) if bias else None
    if scale is not None:
        matrix = (matrix * scale[:, None]).to(ops.dtype)
        vector = None if vector is None else (vector * scale).to(ops.dtype)
    if columns is not None:
        matrix = _sorted(matrix.T, columns).T.contiguous()
    return ops.linear(matrix, vector)


def take_row_parallel(
    ops: Ops, weights: Weights, name: str, n_out: int, n_in: int, *, bias: bool, part: range | None,
    scale: Tensor | None = None,
) -> Linear:  # fmt: skip
    """As take_linear, of the inputs `part` that this rank has; all ranks get the sum. None: this process has all."""
    if part is None:
        return take_linear(ops, weights, name, n_out, n_in, bias=bias, scale=scale)
    adds = ops.ranks.rank == 0  # the bias, once in the sum
    columns = torch.arange(part.start, part.stop)
    linear = take_linear(ops, weights, name, n_out, n_in, bias=bias and adds, columns=columns, scale=scale)
    if bias and not adds:
        weights.take(f"{name}.bias", (n_out,), cut=Cut(rows=()))
    return lambda x: ops.ranks.all_reduce(linear(x))


def take_fused(
    ops: Ops,
    weights: Weights,
    parts: Sequence[tuple[str, int]],
    n_in: int,
    *,
    bias: bool,
    unbiased: Collection[str] = (),
    rows: Tensor | None = None,
) -> Linear:
    """Linears over one input as one, outputs side by side. parts: (name, n_out); unbiased: names without a bias.

    rows: int64 [outputs], for each output where it lies among those on disk, -1: nowhere, it is 0; None: as they lie
    there. What it does not name is not read.
    """
    cuts, rows = _runs([n_out for _, n_out in parts], rows)
    wanted = list(zip(parts, cuts, strict=True))
    matrices = [weights.take(f"{name}.weight", (n_out, n_in), cut=cut) for (name, n_out), cut in wanted]
    if not bias:
        return ops.linear(_sorted(_joined(matrices), rows), None)
    vectors = [
        matrix.new_zeros(len(matrix)) if name in unbiased else weights.take(f"{name}.bias", (n_out,), cut=cut)
        for matrix, ((name, n_out), cut) in zip(matrices, wanted, strict=True)
    ]
    return ops.linear(_sorted(_joined(matrices), rows), _sorted(_joined(vectors), rows))


def per_head_rows(heads: int, head_dim: int) -> Tensor:
    """int64 [3 * heads * head_dim]: where (3, heads, head_dim) lies in a qkv whose rows are (heads, 3, head_dim)."""
    return torch.arange(3 * heads * head_dim).view(heads, 3, head_dim).transpose(0, 1).flatten()


def widened(heads: Tensor, width: int, *, halves: bool) -> Tensor:
    """int64 [heads, head_dim] of places on disk -> [heads, width] with -1 for what is new.

    That comes behind each head; `halves`: behind each of its halves, so that both still turn together.
    """
    parts, more = (2, (width - heads.shape[1]) // 2) if halves else (1, width - heads.shape[1])
    new = heads.new_full((len(heads), more), -1)
    return torch.cat([piece for half in heads.chunk(parts, 1) for piece in (half, new)], dim=1)


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def _sorted(tensor: Tensor, rows: Tensor | None) -> Tensor:
    if rows is None:
        return tensor
    found, new = tensor.index_select(0, rows.clamp(min=0).to(tensor.device)), rows < 0  # rows lie on the host
    return found.masked_fill_(new.to(found.device).view(-1, *[1] * (found.dim() - 1)), 0) if bool(new.any()) else found


def _runs(sizes: Sequence[int], rows: Tensor | None) -> tuple[list[Cut], Tensor | None]:
    """What is read of matrices of so many rows each, and where among that the rows lie; None: in order."""
    if rows is None:
        return [WHOLE] * len(sizes), None
    needed = rows[rows >= 0].unique()  # sorted
    cuts, start = [], 0
    for size in sizes:
        mine = needed[(needed >= start) & (needed < start + size)] - start
        cuts.append(WHOLE if len(mine) == size else Cut(rows=tuple(_ranges(mine))))
        start += size
    return cuts, _unless_in_order(torch.where(rows < 0, rows, torch.searchsorted(needed, rows)), len(needed))


def _ranges(numbers: Tensor) -> Iterator[range]:
    """Sorted numbers as runs of neighbours."""
    ends = [0, *((numbers.diff() != 1).nonzero()[:, 0] + 1).tolist(), len(numbers)]
    for start, stop in pairwise(ends):
        if start < stop:
            yield range(int(numbers[start]), int(numbers[stop - 1]) + 1)


def _span(columns: Tensor | None, n_in: int) -> tuple[Cut, Tensor | None]:
    """As `_runs`, of the columns of one matrix, where all between the first and the last that are named is read."""
    if columns is None:
        return WHOLE, None
    first, last = int(columns[columns >= 0].min()), int(columns.max())
    n = last + 1 - first
    cut = WHOLE if n == n_in else Cut(columns=range(first, last + 1))
    return cut, _unless_in_order(torch.where(columns < 0, columns, columns - first), n)


def _unless_in_order(places: Tensor, n: int) -> Tensor | None:
    return None if torch.equal(places, torch.arange(n)) else places


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding:
    """A table of vectors by id, of which a rank may hold a part."""

    ops: Ops
    table: Tensor  # [rows, hidden] from the id `first` on
    vocab: int
    first: int = 0

    def __call__(self, ids: Tensor) -> Tensor:
        """int64 [T], each in [0, vocab) -> [T, hidden]"""
        if self.ops.ranks.n == 1:
            return F.embedding(ids, self.table)
        last = len(self.table) - 1
        mine = ids - self.first
        found = F.embedding(mine.clamp(0, last), self.table)
        return self.ops.ranks.all_reduce(found.masked_fill_(((mine < 0) | (mine > last))[:, None], 0))


def take_embedding(
    ops: Ops, weights: Weights, table: str, head: str, shape: tuple[int, int], tied: bool
) -> tuple[Embedding, Linear]:
    """Table [vocab, hidden] and output head, tied as by transformers 5.23 (PreTrainedModel.tie_weights).

    `tied` is what the configuration says. Then a head on disk that differs from the table is used, an equal one is
    left there, and a head without a table is both. Prepacking copies a tied table, and so it counts.
    """
    vocab = shape[0]
    part, each = vocabulary_part(ops.ranks, vocab)
    cut = WHOLE if len(part) == vocab else Cut(rows=(part,))
    if tied and weights.has(head):
        if not weights.has(table):
            table = head
        elif not weights.equal(table, head, part):
            tied = False
            weights.warn(
                f"config.json: tie_word_embeddings is true, but {head} on disk differs from {table}: it is used, as by "
                "transformers; write tie_word_embeddings: false, or remove the tensor"
            )
    taken = _lengthened(weights.take(table, shape, cut=cut), each)
    embed = Embedding(ops=ops, table=taken, vocab=vocab, first=ops.ranks.rank * each)
    if tied:
        weights.drop(head)
        if ops.prepacks:
            weights.count(table, taken)
        return embed, _joined_logits(ops, ops.linear(taken), vocab)
    return embed, _joined_logits(ops, ops.linear(_lengthened(weights.take(head, shape, cut=cut), each)), vocab)


def _lengthened(table: Tensor, rows: int) -> Tensor:
    """With zeros behind it where it is shorter."""
    return table if len(table) == rows else torch.cat([table, table.new_zeros((rows - len(table), table.shape[1]))])


def _joined_logits(ops: Ops, head: Linear, vocab: int) -> Linear:
    """The logits of all ranks side by side, without those of rows behind the vocabulary."""
    if ops.ranks.n == 1:
        return head
    return lambda x: ops.ranks.all_gather(head(x))[:, :vocab].contiguous()
