"""What penalties, min_tokens and bad words look back at: the tokens of one answer, counted; and its bias."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from model.engine.messages import SamplingParams

if TYPE_CHECKING:
    from model.engine.sampling.answer_form import AnswerForm

_FIRST_ROOM = 64


@dataclass(slots=True, eq=False)
class TokenCounts:
    """What the penalties look back at: the ids of prompt and answer. `add` takes amortised constant time."""

    _ids: np.ndarray  # int64 [room]
    _less: np.ndarray  # float32 [room]
    _times: list[int]  # how often each was generated; 0 for an id that only the prompt holds
    _places: dict[int, int]
    _frequency: float
    _presence: float

    @classmethod
    def over(cls, prompt: np.ndarray, frequency: float, presence: float) -> "TokenCounts":
        """Before the first generated token. prompt: int64 [n]; empty where it does not matter."""
        known = np.unique(prompt)
        ids = np.zeros(len(known) + _FIRST_ROOM, np.int64)
        ids[: len(known)] = known
        places = {token: i for i, token in enumerate(known.tolist())}
        return cls(ids, np.zeros(len(ids), np.float32), [0] * len(known), places, frequency, presence)

    def add(self, token: int) -> None:
        place = self._places.setdefault(token, len(self._times))
        if place == len(self._times):
            self._append(token)
        self._times[place] += 1
        self._less[place] = self._times[place] * self._frequency + self._presence

    def __len__(self) -> int:
        return len(self._times)

    @property
    def ids(self) -> np.ndarray:
        """int64 [k]: every id of prompt and answer once."""
        return self._ids[: len(self._times)]

    @property
    def less(self) -> np.ndarray:
        """float32 [k]: what the penalties of frequency and presence take off the logit of each of `ids`."""
        return self._less[: len(self._times)]

    def _append(self, token: int) -> None:
        if len(self._times) == len(self._ids):
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._less = np.concatenate([self._less, np.zeros_like(self._less)])
        self._ids[len(self._times)] = token
        self._times.append(0)


@dataclass(slots=True, eq=False)
class BadWords:
    """Which ids would complete a word that the answer must not hold. `add` costs nothing that grows with the answer."""

    _single: list[int]
    _longer: dict[int, list[tuple[int, ...]]]  # by the id before the last one
    _tail: deque[int]  # the newest ids of the answer, as many as the longest word needs

    @classmethod
    def of(cls, words: Sequence[tuple[int, ...]]) -> "BadWords":
        longer: dict[int, list[tuple[int, ...]]] = {}
        for word in words:
            if len(word) > 1:
                longer.setdefault(word[-2], []).append(word)
        single = [word[0] for word in words if len(word) == 1]
        return cls(single, longer, deque(maxlen=max(map(len, words)) - 1))

    def add(self, token: int) -> None:
        self._tail.append(token)

    @property
    def forbidden(self) -> list[int]:
        """Ids that would complete a word now, and so must not come next."""
        candidates = self._longer.get(self._tail[-1]) if self._tail else None
        if candidates is None:
            return self._single
        tail = tuple(self._tail)
        return [*self._single, *(word[-1] for word in candidates if tail[-len(word) + 1 :] == word[:-1])]


@dataclass(slots=True, kw_only=True, eq=False)
class History:
    """The state of one answer's logit rules; it survives preemption."""

    generated: int = 0  # tokens, without those of a thought
    min_tokens: int = 0
    ends: tuple[int, ...] = ()  # ids that end the answer
    counts: TokenCounts | None = None  # None where no penalty is asked for
    bias_ids: np.ndarray | None = None  # int64 [b]
    bias: np.ndarray | None = None  # float32 [b]
    allowed: np.ndarray | None = None  # int64 [a]: the only ids that may be sampled
    bad_words: BadWords | None = None
    form: "AnswerForm | None" = None  # that the answer is held to
    thought_end: int | None = None  # the id that ends the thought in which the answer is; None: it is in none
    owes: bool = False  # no answer without a word fits the form: no end may come inside the thought
    looks_back: bool = False  # whether any rule is asked for

    @classmethod
    def of(cls, sampling: SamplingParams, prompt: np.ndarray) -> "History":
        """Before the first generated token. prompt: int64 [n], its placeholders restored."""
        history = cls(min_tokens=sampling.min_tokens, ends=sampling.stop_token_ids, thought_end=sampling.thought_end)
        if sampling.repetition_penalty != 1:
            history.counts = TokenCounts.over(prompt, sampling.frequency_penalty, sampling.presence_penalty)
        elif sampling.presence_penalty or sampling.frequency_penalty:
            history.counts = TokenCounts.over(prompt[:0], sampling.frequency_penalty, sampling.presence_penalty)
        if sampling.logit_bias:
            history.bias_ids = np.array([token for token, _ in sampling.logit_bias], np.int64)
            history.bias = np.array([value for _, value in sampling.logit_bias], np.float32)
        if sampling.allowed_token_ids:
            history.allowed = np.array(sampling.allowed_token_ids, np.int64)
        if sampling.bad_words:
            history.bad_words = BadWords.of(sampling.bad_words)
        asked = (history.counts, history.bias, history.allowed, history.bad_words)
        history.looks_back = sampling.min_tokens > 0 or any(rule is not None for rule in asked)
        return history

    def hold(self, form: "AnswerForm") -> None:
        """Before the first generated token. The form begins behind a thought."""
        self.form, self.looks_back = form, True
        self.owes = self.thought_end is not None and not form.grammar.accepts_nothing

    @property
    def ready(self) -> bool:
        """Whether its next token could be drawn now, as far as its form goes."""
        return (form := self.holding) is None or form.ready

    @property
    def is_slow(self) -> bool:
        """Whether a step would wait for long for the mask of its next token."""
        return (form := self.holding) is not None and form.is_slow

    @property
    def holding(self) -> "AnswerForm | None":
        """The form that the next token is held to."""
        return self.form if self.thought_end is None else None

    def add(self, token: int) -> None:
        if self.thought_end is None:
            self.generated += 1
            if self.form is not None:
                self.form.add(token)
        elif token == self.thought_end:
            self.thought_end = None
        if self.counts is not None:
            self.counts.add(token)
        if self.bad_words is not None:
            self.bad_words.add(token)

    @property
    def forbidden(self) -> list[int]:
        """Ids that the answer must not go on with: its ends before min_tokens, and the last id of a bad word.

        Ends, too, inside a thought behind which a form is to come.
        """
        early = self.ends if self.generated < self.min_tokens or (self.owes and self.thought_end is not None) else ()
        return [*early, *(self.bad_words.forbidden if self.bad_words is not None else ())]
