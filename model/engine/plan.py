"""The plan of one engine step and its outcome, as frozen data."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from model.engine.messages import Token
from model.engine.sequence import Key

FailureCode = Literal["media_unavailable", "nothing_allowed", "internal"]


class RequestError(Exception):
    """This request cannot go on; the engine and its other requests can. The message holds no segment's name."""

    def __init__(self, message: str, code: FailureCode = "internal") -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens `start` to `stop` of one sequence in a step. A decode is a chunk of one token."""

    request_id: str
    start: int
    stop: int
    samples: bool  # the chunk reaches the last known token, so the next one is drawn
    encode: tuple[int, ...] = ()  # media whose first pad is reached in this chunk, by index
    scored: tuple[int, int] = (0, 0)  # [first, last) of the prompt: what each gives the token after it is wanted
    index: int = 0  # of the answer
    followers: tuple[int, ...] = ()  # further answers that draw their first token from this chunk's last row
    copies: tuple[tuple[int, int], ...] = ()  # (from, to): blocks that followers get a copy of, after the forward pass

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def key(self) -> Key:
        return self.request_id, self.index

    @property
    def draws(self) -> tuple[Key, ...]:
        """The sequences that get a token from this chunk."""
        if not self.samples:
            return ()
        if not self.followers:
            return ((self.request_id, self.index),)
        return tuple((self.request_id, index) for index in (self.index, *self.followers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    chunks: tuple[Chunk, ...]

    @property
    def n_tokens(self) -> int:
        return sum(chunk.length for chunk in self.chunks)

    def without(self, request_ids: Collection[str]) -> "Plan":
        """The same step without requests that failed before the forward pass."""
        if not request_ids:
            return self
        kept = tuple(chunk for chunk in self.chunks if chunk.request_id not in request_ids)
        return Plan(chunks=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A request that failed has no tokens; its chunks count as not run."""

    tokens: Mapping[Key, Token]  # one for each of the chunks' draws
    read: Mapping[str, tuple[str, ...]]  # request -> segments that were read to their end
    failed: Mapping[str, RequestError]
    scores: Mapping[str, tuple[Token, ...]] = field(default_factory=dict)  # request -> what its prompt's tokens got
    seconds: Mapping[str, float]  # stage -> seconds: encode, prefill or decode, sample
