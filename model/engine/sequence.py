"""The engine's mutable record of one answer: ids, media, blocks and progress."""

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from model.engine.history import History
from model.engine.messages import SamplingParams
from model.staging.tables import Seat
from tokenization.messages import MediaItem

if TYPE_CHECKING:
    from torch import Tensor


Key = tuple[str, int]  # request id, index of the answer
Finish = Literal["stop", "length"]


class Status(Enum):
    """There is none for the end: a sequence that ends leaves the engine."""

    WAITING = "waiting"
    FOLLOWING = "following"  # it has a place and blocks, and waits for an answer before it to end their common prompt
    RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRef:
    """What the two words of a medium decode to."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as numpy names it


@dataclass(slots=True, kw_only=True, eq=False)
class SequenceMedia:
    """First a segment to read, then embeddings: in host memory, and on the device while their prompt is computed."""

    item: MediaItem
    segment: SegmentRef | None  # None once it was read
    embeddings: "Tensor | None" = None  # [n_tokens, hidden], host memory; kept until the request ends
    on_device: "Tensor | None" = None  # the same where the network computes; a CPU has no second copy

    @property
    def first(self) -> int:
        """Index of the first pad."""
        return min(start for start, _ in self.item.spans)

    @property
    def n_tokens(self) -> int:
        """Pads of all spans: the rows that the encoder must give."""
        return sum(length for _, length in self.item.spans)

    def part(self, first: int, last: int) -> "Tensor":
        """Embeddings of the pads `first` to `last`, wherever they lie. Raises RuntimeError where there are none."""
        found = self.embeddings if self.on_device is None else self.on_device
        if found is None:
            raise RuntimeError("a chunk reaches a medium that was not encoded")
        return found[first:last]


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One answer. The answers of one request share `positions`, `media` and the embeddings in it."""

    request_id: str
    index: int = 0
    client: int = 0  # whose share it takes
    ids: np.ndarray  # int64 [limit]: the prompt with its pads restored, then what was generated
    n_prompt: int
    limit: int  # tokens at which generation ends with "length": prompt + max_tokens, at most max_model_len
    positions: np.ndarray  # int64 [3, n_prompt]
    position_delta: int  # a generated token at index i has position i + position_delta
    media: tuple[SequenceMedia, ...]
    embedding_bytes: int  # what the request's embeddings take in host memory; reserved at its first admission
    sampling: SamplingParams
    n_tokens: int  # valid entries of ids
    scores_prompt: bool = False  # of the first of several answers: they share the prompt
    n_scored: int = 0  # prompt tokens whose prediction of the next one was given out: once, also after a preemption
    n_computed: int = 0  # tokens whose keys and values are in the cache
    n_charged: int = 0  # tokens that its client was charged: once, also after a preemption
    arrived: int = 0  # in which order
    n_waited: int = 0  # steps in a row in which it was running and not computed, because the tables had no room
    block_table: list[int] = field(default_factory=list)
    seat: Seat | None = None  # while it has blocks: where they stand in the array of block tables
    status: Status = Status.WAITING
    history: History = field(init=False)  # of what was generated, for rules that look back

    def __post_init__(self) -> None:
        self.history = History.of(self.sampling, self.ids[: self.n_prompt])

    @property
    def key(self) -> Key:
        return self.request_id, self.index

    @property
    def is_fresh(self) -> bool:
        """Nothing was generated yet."""
        return self.n_tokens == self.n_prompt

    def answer(self, index: int) -> "Sequence":
        """Another answer to this fresh prompt. It draws with seed + index, wrapped to 64 bits."""
        seed = (self.sampling.seed + index + (1 << 63)) % (1 << 64) - (1 << 63)
        return Sequence(
            request_id=self.request_id, index=index, client=self.client, ids=self.ids.copy(), n_prompt=self.n_prompt,
            limit=self.limit,
            positions=self.positions, position_delta=self.position_delta, media=self.media,
            embedding_bytes=self.embedding_bytes, n_tokens=self.n_tokens,
            sampling=msgspec.structs.replace(self.sampling, seed=seed),
        )  # fmt: skip

    def append(self, token: int) -> None:
        self.ids[self.n_tokens] = token
        self.n_tokens += 1
        self.history.add(token)

    def finish(self, token: int) -> Finish | None:
        """How it ends with `token`, its latest one, if it does."""
        if token in self.sampling.stop_token_ids:
            return "stop"
        return "length" if self.n_tokens >= self.limit else None

    def positions_of(self, start: int, stop: int) -> np.ndarray:
        """int64 [3, stop - start]; those of generated tokens come from the delta."""
        prompt = self.positions[:, start:stop]
        if stop <= self.n_prompt:
            return prompt
        generated = np.arange(max(start, self.n_prompt), stop, dtype=np.int64) + self.position_delta
        return np.concatenate([prompt, np.broadcast_to(generated, (3, len(generated)))], axis=1)

    def scored_until(self, stop: int) -> tuple[int, int]:
        """The tokens [first, last) before `stop` whose prediction of the next prompt token is to be given out."""
        if not self.scores_prompt:
            return (0, 0)
        first = max(self.n_computed, self.n_scored)
        last = min(stop, self.n_prompt - 1)
        return (first, last) if first < last else (0, 0)

    def unread_until(self, stop: int) -> tuple[int, ...]:
        """Indices of the media that the tokens before `stop` need and that are not encoded yet."""
        if not self.media or self.n_computed >= self.n_prompt:
            return ()
        return tuple(i for i, m in enumerate(self.media) if m.embeddings is None and m.first < stop)
