"""What the logit rules look back at: the tokens of one answer, counted, and its biases."""

from dataclasses import dataclass

import numpy as np

from model.engine.messages import SamplingParams

_FIRST_ROOM = 64


@dataclass(slots=True, eq=False)
class TokenCounts:
    """How often each id was generated, and which ids the prompt holds. `add` takes amortised constant time."""

    _ids: np.ndarray  # int64 [room]
    _counts: np.ndarray  # float32 [room]: how often generated; 0 for an id that only the prompt holds
    _places: dict[int, int]

    @classmethod
    def over(cls, prompt: np.ndarray) -> "TokenCounts":
        """Counts before the first generated token. prompt: int64 [n]; empty where it does not matter."""
        known = np.unique(prompt)
        ids = np.zeros(len(known) + _FIRST_ROOM, np.int64)
        ids[: len(known)] = known
        return cls(ids, np.zeros(len(ids), np.float32), {token: i for i, token in enumerate(known.tolist())})

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._places))
        if place == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._ids[place] = token
        self._counts[place] += 1

    @property
    def ids(self) -> np.ndarray:
        """int64 [k]: every id of prompt and answer once."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> np.ndarray:
        """float32 [k]: how often each of `ids` was generated."""
        return self._counts[: len(self._places)]


@dataclass(slots=True, kw_only=True, eq=False)
class History:
    """The state of one answer's logit rules; it survives preemption."""

    generated: int = 0
    counts: TokenCounts | None = None  # None where no penalty is asked for
    bias_ids: np.ndarray | None = None  # int64 [b]
    bias: np.ndarray | None = None  # float32 [b]

    @classmethod
    def of(cls, sampling: SamplingParams, prompt: np.ndarray) -> "History":
        """Before the first generated token. prompt: int64 [n], its pads restored."""
        history = cls()
        if sampling.repetition_penalty != 1:
            history.counts = TokenCounts.over(prompt)
        elif sampling.presence_penalty or sampling.frequency_penalty:
            history.counts = TokenCounts.over(prompt[:0])
        if sampling.logit_bias:
            history.bias_ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
            history.bias = np.array([value for _, value in sampling.logit_bias], np.float32)
        return history

    def add(self, token: int) -> None:
        self.generated += 1
        if self.counts is not None:
            self.counts.add(token)
