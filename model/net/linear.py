"""Turns weights on disk into linears, embeddings and heads."""

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from model.ops.base import Linear, Ops
from model.weights import Weights


def take_linear(ops: Ops, weights: Weights, name: str, n_out: int, n_in: int, *, bias: bool) -> Linear:
    """`name`.weight [n_out, n_in], and `name`.bias [n_out] if `bias`, prepared."""
    return take_fused(ops, weights, [(name, n_out)], n_in, bias=bias)


def take_fused(
    ops: Ops,
    weights: Weights,
    parts: Sequence[tuple[str, int]],
    n_in: int,
    *,
    bias: bool,
    unbiased: Collection[str] = (),
) -> Linear:
    """Linears over one input as one, outputs side by side. parts: (name, n_out); unbiased: names without a bias."""
    matrices = [weights.take(f"{name}.weight", (n_out, n_in)) for name, n_out in parts]
    if not bias:
        return ops.linear(_joined(matrices), None)
    vectors = [
        matrix.new_zeros(n_out) if name in unbiased else weights.take(f"{name}.bias", (n_out,))
        for matrix, (name, n_out) in zip(matrices, parts, strict=True)
    ]
    return ops.linear(_joined(matrices), _joined(vectors))


def take_per_head_qkv(ops: Ops, weights: Weights, name: str, heads: int, width: int) -> Linear:
    """A biased qkv linear whose rows are (heads, 3, head_dim) on disk; its outputs are (3, heads, head_dim)."""

    def sorted_rows(tensor: Tensor) -> Tensor:
        rows: Tensor = tensor.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2)
        return rows.contiguous()

    weight = weights.take(f"{name}.weight", (3 * width, width))
    return ops.linear(sorted_rows(weight), sorted_rows(weights.take(f"{name}.bias", (3 * width,))))


def _joined(pieces: list[Tensor]) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


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
