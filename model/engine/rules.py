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


class Rules:
    """What the rows of a step ask for, gathered row by row; arrays are made of all rows at once."""

    def __init__(self, vocab: int) -> None:
        self._vocab = vocab
        self._biased: list[tuple[int, np.ndarray, np.ndarray]] = []  # row, ids, bias
        self._penalised: list[tuple[int, np.ndarray, np.ndarray, float]] = []  # row, ids, less, factor
        self._allowed: list[tuple[int, np.ndarray]] = []  # row, ids
        self._forbidden: list[int] = []  # places

    def add(self, i: int, sampling: SamplingParams, history: History) -> None:
        """The row at place i of the batch."""
        if history.bias_ids is not None and history.bias is not None:
            self._biased.append((i, history.bias_ids, history.bias))
        counts = history.counts
        if counts is not None and len(counts):
            self._penalised.append((i, counts.ids, counts.less, sampling.repetition_penalty))
        if history.generated < sampling.min_tokens:
            self._forbid(i, sampling.stop_token_ids)
        if history.bad_words is not None:
            self._forbid(i, history.bad_words.forbidden)
        if history.allowed is not None:
            self._allowed.append((i, history.allowed))

    def fields(self) -> list[Field]:
        """Those that some row asks for."""
        found = []
        if self._biased:
            n = sum([len(ids) for _, ids, _ in self._biased])
            found += [Field("biased", "int64", (n,)), Field("bias", "float32", (n,))]
        if self._penalised:
            n = sum([len(ids) for _, ids, _, _ in self._penalised])
            found += [Field("penalised", "int64", (n,)), Field("penalties", "float32", (2, n))]
        if self._forbidden:
            found.append(Field("forbidden", "int64", (len(self._forbidden),)))
        if self._allowed:
            n = sum([len(ids) for _, ids in self._allowed])
            found += [Field("allowed", "int64", (n,)), Field("restricted", "int64", (len(self._allowed),))]
        return found

    def write(self, host: Mapping[str, np.ndarray]) -> None:
        """Into the arrays of `fields`."""
        if self._biased:
            rows, ids, bias = zip(*self._biased, strict=True)
            self._write_places(rows, ids, host["biased"])
            np.concatenate(bias, out=host["bias"])
        if self._penalised:
            rows, ids, less, factors = zip(*self._penalised, strict=True)
            lengths = self._write_places(rows, ids, host["penalised"])
            host["penalties"][0] = np.repeat(np.array(factors, np.float32), lengths)
            np.concatenate(less, out=host["penalties"][1])
        if self._forbidden:
            host["forbidden"][:] = self._forbidden
        if self._allowed:
            rows, ids = zip(*self._allowed, strict=True)
            self._write_places(rows, ids, host["allowed"])
            host["restricted"][:] = rows

    def _forbid(self, i: int, ids: Sequence[int]) -> None:
        vocab = self._vocab
        self._forbidden += [token + i * vocab for token in ids if token < vocab]

    def _write_places(self, rows: Sequence[int], ids: Sequence[np.ndarray], out: np.ndarray) -> list[int]:
        """Ids of rows as places in the flat logits, int64 [n]. -> how many each row has"""
        lengths = [len(of_row) for of_row in ids]
        np.concatenate(ids, out=out)
        out += np.repeat(np.array(rows, np.int64) * self._vocab, lengths)
        return lengths


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
