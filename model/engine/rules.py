"""Changes logits before a token is drawn: bias, penalties, forbidden and allowed ids.

Order and rules are those of transformers' logits processors; OpenAI's penalties follow the repetition penalty. What the
rows ask for is gathered on the host as arrays of places in the logits of the whole batch, and applied on the device.
"""

from collections.abc import Collection, Mapping, Sequence
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


class Places:
    """Ids of some rows, as places in the flat logits of the batch."""

    def __init__(self) -> None:
        self._ids: list[np.ndarray] = []  # int64 [n] each
        self._lengths: list[int] = []
        self.rows: list[int] = []  # of each of them
        self.n = 0

    def add(self, row: int, ids: np.ndarray) -> None:
        self._ids.append(ids)
        self._lengths.append(len(ids))
        self.rows.append(row)
        self.n += len(ids)

    def per_id(self, of_row: Sequence[float]) -> np.ndarray:
        """float32 [n]: a number of each row, for each of its ids."""
        return np.repeat(np.array(of_row, np.float32), self._lengths)

    def write(self, out: np.ndarray, vocab: int) -> None:
        """out: int64 [n]"""
        np.concatenate(self._ids, out=out)
        out += np.repeat(np.array(self.rows, np.int64) * vocab, self._lengths)


class Rules:
    """What the rows of a step ask for, gathered row by row."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._biased, self._penalised, self._allowed = Places(), Places(), Places()
        self._biases: list[np.ndarray] = []
        self._less: list[np.ndarray] = []
        self._factors: list[float] = []
        self._forbidden: list[int] = []

    def add(self, i: int, row: Row) -> None:
        """The row at place i of the batch, if it looks back."""
        history = row.history
        if history is None or not history.looks_back:
            return
        if history.bias_ids is not None and history.bias is not None:
            self._biased.add(i, history.bias_ids)
            self._biases.append(history.bias)
        if history.counts is not None and len(history.counts):
            self._penalised.add(i, history.counts.ids)
            self._less.append(history.counts.less)
            self._factors.append(row.sampling.repetition_penalty)
        if history.bad_words is not None or history.generated < row.sampling.min_tokens:
            vocab = self._vocab
            self._forbidden += [token + i * vocab for token in _forbidden(row) if token < vocab]
        if history.allowed is not None:
            self._allowed.add(i, history.allowed)

    def fields(self) -> list[Field]:
        """Those that some row asks for."""
        biased, penalised, allowed = self._biased.n, self._penalised.n, self._allowed.n
        found = []
        if biased:
            found += [Field("biased", "int64", (biased,)), Field("bias", "float32", (biased,))]
        if penalised:
            found += [Field("penalised", "int64", (penalised,)), Field("penalties", "float32", (2, penalised))]
        if self._forbidden:
            found.append(Field("forbidden", "int64", (len(self._forbidden),)))
        if allowed:
            found += [Field("allowed", "int64", (allowed,)), Field("restricted", "int64", (len(self._allowed.rows),))]
        return found

    def write(self, host: Mapping[str, np.ndarray]) -> None:
        """Into the arrays of `fields`."""
        if self._biased.n:
            self._biased.write(host["biased"], self._vocab)
            np.concatenate(self._biases, out=host["bias"])
        if self._penalised.n:
            self._penalised.write(host["penalised"], self._vocab)
            host["penalties"][0] = self._penalised.per_id(self._factors)
            np.concatenate(self._less, out=host["penalties"][1])
        if self._forbidden:
            host["forbidden"][:] = self._forbidden
        if self._allowed.n:
            self._allowed.write(host["allowed"], self._vocab)
            host["restricted"][:] = self._allowed.rows


def apply_rules(logits: Tensor, arrays: Mapping[str, Tensor], banned: Tensor | None = None) -> None:
    """Change float32 logits [S, vocab] in place by the fields of `Rules`; the ids in `banned` are for no row."""
    flat = logits.view(-1)
    if "biased" in arrays:
        flat.index_add_(0, arrays["biased"], arrays["bias"])
    if "penalised" in arrays:  # row 0: by what a logit is multiplied or divided; row 1: what is then taken off
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
