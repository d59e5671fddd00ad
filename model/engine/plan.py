"""The plan of one engine step and its outcome, as frozen data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from model.engine.messages import Token
from model.engine.sequence import EncoderInput, ItemKey, Key, StoreKey

FailureCode = Literal["media_unavailable", "media_evicted", "nothing_allowed", "structured_output", "internal"]


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
    samples: bool  # the chunk reaches the last known token, so the next one is sampled
    scored: tuple[int, int] = (0, 0)  # [first, last) of the prompt: what each gives the token after it is wanted
    index: int = 0  # of the answer
    followers: tuple[int, ...] = ()  # further answers that sample their first token from this chunk's last row
    copies: tuple[tuple[int, int], ...] = ()  # (from, to): blocks that followers get a copy of, after the forward pass
    # Of a decode whose input the host has not seen: the row of the last step's samples that it is.
    prev_sample: int | None = None

    @property
    def key(self) -> Key:
        return self.request_id, self.index

    @property
    def sampled_keys(self) -> tuple[Key, ...]:
        """The sequences that get a token from this chunk."""
        if not self.samples:
            return ()
        if not self.followers:
            return ((self.request_id, self.index),)
        return tuple((self.request_id, index) for index in (self.index, *self.followers))


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a step computes, without tensors. A runner that got all steps before needs only this and the batch.

    Embeddings first leave memory, then the device, then new ones are made.
    """

    chunks: tuple[Chunk, ...]
    freed: tuple[StoreKey, ...] = ()  # media whose request ended, or whose room another one needs
    offloaded: tuple[StoreKey, ...] = ()  # media that the device keeps no embeddings of: host memory has them
    encodes: tuple[EncoderInput, ...] = ()  # media whose first placeholder is reached
    lacking: tuple[str, ...] = ()  # requests that ended now: they came for embeddings that are gone

    @property
    def n_tokens(self) -> int:
        return sum([chunk.stop - chunk.start for chunk in self.chunks])


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The running step, as other threads may read it."""

    started: float  # time.monotonic()
    tokens: int
    patches: int
    pairs: int  # of patches of one picture or temporal grid: attention is quadratic in it


def progress_of(plan: Plan, started: float) -> Progress:
    """What the pulse tells of a step. Sounds count no pairs: they are short, or are attended to in short chunks."""
    patches = pairs = 0
    for item in plan.encodes:
        t, h, w = item.grid
        patches += t * h * w
        pairs += 0 if item.kind == "audio" else t * (h * w) ** 2
    return Progress(started=started, tokens=plan.n_tokens, patches=patches, pairs=pairs)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What a step gave."""

    tokens: Mapping[Key, tuple[Token, ...]]  # of each answer that was sampled; none where the logits gave none
    late: frozenset[Key] = frozenset()  # of those that were sampled, whose mask was not there: they have no token
    spoiled: tuple[Key, ...] = ()  # of those without a token: whose logits were not finite
    scores: Mapping[str, tuple[Token, ...]] = field(default_factory=dict)  # request -> what its prompt's tokens got
    read: tuple[ItemKey, ...] = ()  # media whose segment was read to its end
    filled: tuple[StoreKey, ...] = ()  # media that have embeddings now
    failed: Mapping[ItemKey, RequestError] = field(default_factory=dict)  # media without: their request has no tokens
    dropped: tuple[StoreKey, ...] = ()  # media whose embeddings are gone
    seconds: Mapping[str, float] = field(default_factory=dict)  # stage -> seconds: encode, prefill or decode, sample

    @property
    def lost(self) -> tuple[Key, ...]:
        """Answers that the logits gave no token."""
        return tuple([key for key, tokens in self.tokens.items() if not tokens])

    @property
    def failed_requests(self) -> set[str]:
        return {request_id for request_id, _ in (*self.failed, *self.lost)}
