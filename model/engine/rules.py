"""Changes logits before a token is drawn: bias, penalties, forbidden and allowed ids.

Order and rules are those of transformers' logits processors; OpenAI's penalties follow the repetition penalty. What the
rows ask for is gathered on the host as arrays of places in the logits of the whole batch, and applied on the device.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.engine.history import History
from model.engine.messages import SamplingParams
from model.staging.packing import Field


class Row(NamedTuple):
    sampling: SamplingParams
    position: int  # index that the drawn token gets in its sequence
    history: History | None = None  # None: nothing that looks back is asked for


@dataclass(slots=True)
class Places:
    """Ids of some rows, as places in the flat logits of the batch."""

    ids: list[np.ndarray] = field(default_factory=list)  # int64 [n] each
    rows: list[int] = field(default_factory=list)  # of each of `ids`

    def __len__(self) -> int:
        return sum(map(len, self.ids))

    def add(self, row: int, ids: np.ndarray) -> None:
        self.rows.append(row)
        self.ids.append(ids)

    def per_id(self, of_row: Sequence[float]) -> np.ndarray:
        """float64 [n]: a number of each row, for each of its ids."""
        return np.repeat(np.array(of_row, np.float64), [len(ids) for ids in self.ids])

    def write(self, out: np.ndarray, vocab: int) -> None:
        """out: int64 [n]"""
        np.concatenate(self.ids, out=out)
        out += np.repeat(np.array(self.rows, np.int64) * vocab, [len(ids) for ids in self.ids])


class Rules:
    """What the rows of a step ask for. A row that asks for nothing costs one look."""

    def __init__(self, rows: Sequence[Row], vocab: int) -> None:
        self._vocab = vocab
        self._biased, self._penalised, self._forbidden, self._allowed = Places(), Places(), Places(), Places()
        self._biases: list[np.ndarray] = []
        self._times: list[np.ndarray] = []
        self._sampling: list[SamplingParams] = []  # of those that are penalised
        for i, row in enumerate(rows):
            if row.history is not None and row.history.looks_back:
                self._gather(i, row, row.history)

    def fields(self) -> list[Field]:
        """Those that some row asks for."""
        found = []
        if self._biases:
            n = len(self._biased)
            found += [Field("biased", "int64", (n,)), Field("bias", "float32", (n,))]
        if self._times:
            n = len(self._penalised)
            found += [Field("penalised", "int64", (n,)), Field("penalties", "float32", (2, n))]
        if self._forbidden.ids:
            found.append(Field("forbidden", "int64", (len(self._forbidden),)))
        if self._allowed.ids:
            n = len(self._allowed)
            found += [Field("allowed", "int64", (n,)), Field("restricted", "int64", (len(self._allowed.ids),))]
        return found

    def write(self, host: Mapping[str, np.ndarray]) -> None:
        """Into the arrays of `fields`."""
        if self._biases:
            self._biased.write(host["biased"], self._vocab)
            np.concatenate(self._biases, out=host["bias"])
        if self._times:
            self._penalised.write(host["penalised"], self._vocab)
            self._write_penalties(host["penalties"])
        if self._forbidden.ids:
            self._forbidden.write(host["forbidden"], self._vocab)
        if self._allowed.ids:
            self._allowed.write(host["allowed"], self._vocab)
            host["restricted"][:] = self._allowed.rows

    def _gather(self, i: int, row: Row, history: History) -> None:
        if history.bias_ids is not None and history.bias is not None:
            self._biased.add(i, history.bias_ids)
            self._biases.append(history.bias)
        if history.counts is not None and len(history.counts.ids):
            self._penalised.add(i, history.counts.ids)
            self._times.append(history.counts.counts)
            self._sampling.append(row.sampling)
        if history.bad_words is not None or history.generated < row.sampling.min_tokens:
            forbidden = [token for token in _forbidden(row) if token < self._vocab]
            if forbidden:
                self._forbidden.add(i, np.array(forbidden, np.int64))
        if history.allowed is not None:
            self._allowed.add(i, history.allowed)

    def _write_penalties(self, out: np.ndarray) -> None:
        """out: float32 [2, n]: by what a logit is multiplied or divided, and what is then taken off."""
        times, per_id, asked = np.concatenate(self._times), self._penalised.per_id, self._sampling
        out[0] = per_id([s.repetition_penalty for s in asked])
        out[1] = per_id([s.frequency_penalty for s in asked]) * times
        out[1] += per_id([s.presence_penalty for s in asked]) * (times > 0)


def apply_rules(logits: Tensor, arrays: Mapping[str, Tensor], banned: Tensor | None = None) -> None:
    """Change float32 logits [S, vocab] in place by the fields of `Rules`; the ids in `banned` are for no row."""
    flat = logits.view(-1)
    if "biased" in arrays:
        flat.index_add_(0, arrays["biased"], arrays["bias"])
    if "penalised" in arrays:
        _penalise(flat, arrays["penalised"], *arrays["penalties"].unbind(0))
    if "forbidden" in arrays:
        flat.index_fill_(0, arrays["forbidden"], -torch.inf)
    if "allowed" in arrays:
        kept = flat.index_select(0, arrays["allowed"])
        logits.index_fill_(0, arrays["restricted"], -torch.inf)
        flat.index_copy_(0, arrays["allowed"], kept)
    if banned is not None and len(banned):
        logits.index_fill_(1, banned, -torch.inf)


def exhausted(row: Row, banned: Collection[int]) -> bool:
    """Whether the client's own rules leave no id of `allowed_token_ids` to this row, so that nothing can be drawn."""
    allowed = row.sampling.allowed_token_ids
    return bool(allowed) and set(allowed) <= {*banned, *_forbidden(row)}


def _forbidden(row: Row) -> list[int]:
    """Ids that the answer must not go on with: its ends before min_tokens, and the last id of a bad word."""
    history = row.history
    if history is None:
        return []
    early = row.sampling.stop_token_ids if history.generated < row.sampling.min_tokens else ()
    return [*early, *(history.bad_words.forbidden if history.bad_words is not None else ())]


def _penalise(flat: Tensor, places: Tensor, factor: Tensor, less: Tensor) -> None:
    """places: int64 [k], no place twice; factor, less: float32 [k]"""
    found = flat.index_select(0, places)
    found = torch.where(found < 0, found * factor, found / factor) - less
    flat.index_copy_(0, places, found)
