"""What the rows of a step ask of logits processors and sampler, gathered on the host before the forward pass."""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from model.engine.messages import SamplingParams
from model.engine.sampling.history import History
from model.engine.sampling.metadata import SamplingMetadata
from model.engine.sampling.sampler import uniform
from model.staging.layout import SamplingArrays

if TYPE_CHECKING:
    from model.engine.sampling.answer_form import AnswerForm

_MIN_TEMPERATURE = 1e-6  # below it float32 cannot tell the distribution from its peak
_MAX_TEMPERATURE = 1e6  # above it all that may be sampled is as good as equally likely, and float32 comes to its end


class Row(NamedTuple):
    sampling: SamplingParams
    position: int  # index that the sampled token gets in its sequence
    history: History | None = None  # None: nothing that looks back is asked for

    def exhausted(self, banned: Collection[int]) -> bool:
        """Whether the client's own rules leave no id of `allowed_token_ids`, so that nothing can be sampled."""
        allowed, history = self.sampling.allowed_token_ids, self.history
        excluded = {*banned, *(history.forbidden if history is not None else ())}
        return bool(allowed) and all(token in excluded for token in allowed)  # the first that is not tells


class SamplingRows:
    """Gathered row by row; arrays are made of all rows at once."""

    def __init__(self, rows: Sequence[Row], vocab: int) -> None:
        self._vocab = vocab
        self._random: list[int] = []  # rows
        self._numbers: list[tuple[float, ...]] = []
        self._biased: list[tuple[int, np.ndarray, np.ndarray]] = []  # row, ids, bias
        self._penalised: list[tuple[int, np.ndarray, np.ndarray, float]] = []  # row, ids, less, factor
        self._allowed: list[tuple[int, np.ndarray]] = []  # row, ids
        self._forms: list[AnswerForm] = []  # of the rows that are held to one, in order
        self._masked: list[int] = []
        self._forbidden: list[int] = []  # places
        self._top_k, self._top_p, self._top_p_alone, self._min_p = 0, False, False, False
        logprobs = False
        for i, (sampling, position, history) in enumerate(rows):
            if history is not None and history.looks_back:
                self._add_rules(i, sampling, history)
            logprobs |= sampling.logprobs
            if sampling.temperature > 0:
                self._add_random(i, sampling, position)
        self.metadata = SamplingMetadata(
            n_rows=len(rows),
            n_random=len(self._random),
            top_k=self._top_k,
            top_p=self._top_p,
            top_p_alone=self._top_p_alone,
            min_p=self._min_p,
            logprobs=tuple([row.sampling.top_logprobs if row.sampling.logprobs else -1 for row in rows])
            if logprobs
            else (),
            n_biased=sum([len(ids) for _, ids, _ in self._biased]),
            n_penalised=sum([len(ids) for _, ids, _, _ in self._penalised]),
            n_forbidden=len(self._forbidden),
            n_allowed=sum([len(ids) for _, ids in self._allowed]),
            n_restricted=len(self._allowed),
            n_masked=len(self._masked),
        )

    def write_masks(self, out: np.ndarray) -> list[int]:
        """What each row that is held to a form may draw: int32 [n, words], a bit for each id. -> late rows"""
        return [self._masked[i] for i in self._forms[0].forms.fill(self._forms, out)]

    def write(self, host: SamplingArrays[np.ndarray]) -> None:
        """Into the arrays of the metadata's layout."""
        if host.biased is not None and host.bias is not None:
            rows, ids, bias = zip(*self._biased, strict=True)
            self._write_places(rows, ids, host.biased)
            np.concatenate(bias, out=host.bias)
        if host.penalised is not None and host.penalties is not None:
            rows, ids, less, factors = zip(*self._penalised, strict=True)
            lengths = self._write_places(rows, ids, host.penalised)
            host.penalties[0] = np.repeat(np.array(factors, np.float32), lengths)
            np.concatenate(less, out=host.penalties[1])
        if host.forbidden is not None:
            host.forbidden[:] = self._forbidden
        if host.allowed is not None and host.restricted is not None:
            rows, ids = zip(*self._allowed, strict=True)
            self._write_places(rows, ids, host.allowed)
            host.restricted[:] = rows
        if host.masked is not None:
            host.masked[:] = self._masked
        if host.numbers is not None:
            host.numbers[:] = np.array(self._numbers, np.float32).T
        if host.random_rows is not None:
            host.random_rows[:] = self._random

    def _add_rules(self, i: int, sampling: SamplingParams, history: History) -> None:
        if history.bias_ids is not None and history.bias is not None:
            self._biased.append((i, history.bias_ids, history.bias))
        counts = history.counts
        if counts is not None and len(counts):
            self._penalised.append((i, counts.ids, counts.less, sampling.repetition_penalty))
        if (form := history.holding) is not None:
            self._forms.append(form)
            self._masked.append(i)
        self._forbid(i, history.forbidden)
        if history.allowed is not None:
            self._allowed.append((i, history.allowed))

    def _forbid(self, i: int, ids: Sequence[int]) -> None:
        vocab = self._vocab
        self._forbidden += [token + i * vocab for token in ids if 0 <= token < vocab]

    def _write_places(self, rows: Sequence[int], ids: Sequence[np.ndarray], out: np.ndarray) -> list[int]:
        """Ids of rows as places in the flat logits, int64 [n]. -> how many each row has"""
        lengths = [len(of_row) for of_row in ids]
        np.concatenate(ids, out=out)
        out += np.repeat(np.array(rows, np.int64) * self._vocab, lengths)
        return lengths

    def _add_random(self, i: int, sampling: SamplingParams, position: int) -> None:
        top_k, top_p, min_p = sampling.top_k, sampling.top_p, sampling.min_p
        if top_k > 0:
            self._top_k = max(self._top_k, top_k)
        if top_p < 1:
            self._top_p = True
            self._top_p_alone |= top_k <= 0
        if min_p > 0:
            self._min_p = True
        temperature = min(max(sampling.temperature, _MIN_TEMPERATURE), _MAX_TEMPERATURE)
        number = uniform(sampling.seed, position)
        self._random.append(i)
        self._numbers.append((temperature, number, max(0, min(top_k, self._vocab)), top_p, min_p))
