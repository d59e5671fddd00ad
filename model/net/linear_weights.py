"""Weights on disk become linears, several fused into one (qkv, gate and up), embeddings and heads."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from model.ops.base import Linear, Ops
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
    matrix = weights.take(f"{name}.weight", (n_out, n_in), dtype)
    vector = weights.take(f"{name}.bias", (n_out,), dtype) if bias else None
    if scale is not None:
        matrix = (matrix * scale[:, None]).to(ops.dtype)
        vector = None if vector is None else (vector * scale).to(ops.dtype)
    if columns is not None:
        matrix = _sorted(matrix.T, columns).T.contiguous()
    return ops.linear(matrix, vector)


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
    there.
    """
    matrices = [weights.take(f"{name}.weight", (n_out, n_in)) for name, n_out in parts]
    if not bias:
        return ops.linear(_sorted(_joined(matrices), rows), None)
    vectors = [
        matrix.new_zeros(n_out) if name in unbiased else weights.take(f"{name}.bias", (n_out,))
        for matrix, (name, n_out) in zip(matrices, parts, strict=True)
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


def take_embedding(
    ops: Ops, weights: Weights, table: str, head: str, shape: tuple[int, int], tied: bool
) -> tuple[Tensor, Linear]:
    """Table [vocab, hidden] and output head, tied as by transformers 5.23 (PreTrainedModel.tie_weights).

    `tied` is what the configuration says. Then a head on disk that differs from the table is used, an equal one is
    left there, and a head without a table is both. Prepacking copies a tied table.
    """
    if tied and weights.has(head):
        if not weights.has(table):
            table = head
        elif not weights.equal(table, head):
            tied = False
            weights.warn(
                f"config.json: tie_word_embeddings is true, but {head} on disk differs from {table}: it is used, as by "
                "transformers; write tie_word_embeddings: false, or remove the tensor"
            )
    embed = weights.take(table, shape)
    if tied:
        weights.drop(head)
        return embed, ops.linear(embed)
    return embed, ops.linear(weights.take(head, shape))
