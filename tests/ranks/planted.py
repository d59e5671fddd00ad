"""What is planted into a rank's process: mistakes, each of which must be seen, and sums of parts nobody rounded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from model.net import decoder, linear_weights, mlp
from model.net.rank_parts import RankPart, gate_up_places, head_places
from model.ops.base import Linear, Ops
from model.ops.collectives import Ranks

EXACT_SUMS = "sums in float32"


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While a model is built and runs; "" plants nothing."""
    with pytest.MonkeyPatch.context() as patch:
        if name:
            {**MISTAKES, EXACT_SUMS: _sums_in_float32}[name](patch)
        yield


@dataclass(frozen=True, slots=True)
class _Float32Parts:
    """In the place of Ops, whose linears give what they added up without rounding it."""

    ops: Ops

    @property
    def ranks(self) -> Ranks:
        return self.ops.ranks

    def linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        return lambda x: F.linear(x.float(), weight.float(), None if bias is None else bias.float())


def _sums_in_float32(patch: pytest.MonkeyPatch) -> None:
    def take(ops: Ops, *given: Any, part: range | None, **named: Any) -> Linear:
        if part is None:  # of a tower
            return linear_weights.take_row_parallel(ops, *given, part=part, **named)
        parts: Any = _Float32Parts(ops)
        total = linear_weights.take_row_parallel(parts, *given, part=part, **named)
        return lambda x: total(x).to(x.dtype)

    patch.setattr(decoder, "take_row_parallel", take)
    patch.setattr(mlp, "take_row_parallel", take)


def _bias_on_every_rank(patch: pytest.MonkeyPatch) -> None:
    def take(ops: Ops, weights: Any, name: str, n_out: int, n_in: int, *, bias: bool, part: range, **rest: Any) -> Any:
        columns = torch.arange(part.start, part.stop)
        linear = linear_weights.take_linear(ops, weights, name, n_out, n_in, bias=bias, columns=columns)
        return lambda x: ops.ranks.all_reduce(linear(x))

    patch.setattr(decoder, "take_row_parallel", take)
    patch.setattr(mlp, "take_row_parallel", take)


def _heads_of_the_first_rank(patch: pytest.MonkeyPatch) -> None:
    def first(places: Tensor, heads: int, kv_heads: int, part: RankPart) -> Tensor:
        return head_places(places, heads, kv_heads, RankPart(
            heads=range(len(part.heads)), kv_heads=range(len(part.kv_heads)), inter=part.inter
        ))  # fmt: skip

    patch.setattr(decoder, "head_places", first)


def _up_before_gate(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mlp, "gate_up_places", lambda *given: torch.cat(gate_up_places(*given).chunk(2)[::-1]))


def _halves_of_both(patch: pytest.MonkeyPatch) -> None:
    """One piece of gate and up together, as if their rows were one matrix."""

    def places(inter: int, parts: int, part: range) -> Tensor:
        return torch.arange(parts * part.start, parts * part.stop)

    patch.setattr(mlp, "gate_up_places", places)


def _sum_left_out(patch: pytest.MonkeyPatch) -> None:
    def take(ops: Ops, weights: Any, name: str, n_out: int, n_in: int, *, bias: bool, part: range) -> Any:
        columns = torch.arange(part.start, part.stop)
        return linear_weights.take_linear(ops, weights, name, n_out, n_in, bias=bias, columns=columns)

    patch.setattr(decoder, "take_row_parallel", take)


def _ids_of_others_not_masked(patch: pytest.MonkeyPatch) -> None:
    def look_up(embed: Any, ids: Tensor) -> Tensor:
        rows = (ids - embed.first).clamp(0, len(embed.table) - 1)
        found: Tensor = embed.ops.ranks.all_reduce(embed.table.index_select(0, rows))
        return found

    patch.setattr(linear_weights.Embedding, "__call__", look_up)


def _padded_vocabulary(patch: pytest.MonkeyPatch) -> None:
    def head(ops: Ops, mine: Linear, vocab: int) -> Callable[[Tensor], Tensor]:
        return lambda x: ops.ranks.all_gather(mine(x))

    patch.setattr(linear_weights, "_joined_logits", head)


MISTAKES: Mapping[str, Callable[[pytest.MonkeyPatch], None]] = {
    "bias on every rank": _bias_on_every_rank,
    "heads of the first rank": _heads_of_the_first_rank,
    "up before gate": _up_before_gate,
    "halves of both": _halves_of_both,
    "sum left out": _sum_left_out,
    "ids of others not masked": _ids_of_others_not_masked,
    "padded vocabulary": _padded_vocabulary,
}
