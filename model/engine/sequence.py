"""The record of one answer, which steps change: ids, media, blocks, progress."""

from dataclasses import dataclass, field
from enum import Enum

import msgspec
import numpy as np

from model.engine.messages import Finish, SamplingParams
from model.engine.sampling.history import History
from tokenization.chat.parts import Kind

Key = tuple[str, int]  # request id, index of the answer
ItemKey = tuple[str, int]  # request id, index of the medium in its prompt
StoreKey = bytes | ItemKey  # of embeddings: by content, or of one request's item alone


class Status(Enum):
    """Where a sequence stands. One that ends leaves the engine and so has no status."""

    WAITING = "waiting"
    RUNNING = "running"


@dataclass(slots=True, eq=False)
class Seat:
    """A row of the array of block tables, for as long as one sequence has blocks; the next one gets a seat of its own.

    `BlockTables` (batch.py) is the array.
    """

    row: int
    filled: int = 0  # entries of the row that are written


class SegmentRef(msgspec.Struct, frozen=True, kw_only=True):
    """What the two words of a medium decode to."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as numpy names it


class EncoderInput(msgspec.Struct, frozen=True, kw_only=True):
    """One medium of a request: where its array lies, and which rows of the prompt its embeddings are."""

    key: ItemKey
    kind: Kind
    grid: tuple[int, int, int]  # (t, h, w) in patches; of an audio (1, 1, frames)
    spans: tuple[tuple[int, int], ...]  # (start, length) runs of placeholders in the prompt
    segment: SegmentRef | None  # None: it comes for embeddings that are here
    nbytes: int  # of its embeddings
    content: bytes = b""  # MediaItem.key; empty: nobody else takes its embeddings

    @property
    def stored(self) -> StoreKey:
        """By what its embeddings are found."""
        return self.content or self.key

    @property
    def first(self) -> int:
        """Index of the first placeholder."""
        return min(self.spans)[0]

    @property
    def stop(self) -> int:
        """Index behind the last placeholder."""
        return max(start + length for start, length in self.spans)

    @property
    def n_tokens(self) -> int:
        """Placeholders of all spans: the rows that the encoder must give."""
        return sum([length for _, length in self.spans])


@dataclass(slots=True, kw_only=True, eq=False)
class Sequence:
    """One answer. Those of one request share `positions`, `media` and `root`; `ids`, too, until they have tokens."""

    request_id: str
    index: int = 0
    client: int = 0  # whose share it takes
    ids: np.ndarray  # int64 [limit]: the prompt with its placeholders restored, then what was generated
    n_prompt: int
    limit: int  # tokens at which generation ends with "length": prompt + max_tokens, at most max_model_len
    positions: np.ndarray  # int64 [3, n_prompt]
    position_delta: int  # a generated token at index i has position i + position_delta
    media: tuple[EncoderInput, ...]
    root: bytes = b""  # what the keys of its blocks begin with
    sampling: SamplingParams
    n_tokens: int  # valid entries of ids
    borrows_ids: bool = False  # `ids` is the first answer's: only the prompt in it is this one's, too
    scores_prompt: bool = False  # of the first of several answers: they share the prompt
    n_scored: int = 0  # prompt tokens whose prediction of the next one was given out: once, also after a preemption
    n_computed: int = 0  # tokens whose keys and values are in the cache
    n_charged: int = 0  # up to which its client was charged: once, also after a preemption
    n_cached: int = 0  # tokens of the prompt that were in the cache when its request first came in
    arrived: int = 0  # in which order
    n_admitted: int = 0  # tokens that it had when it got its seat
    n_waited: int = 0  # steps in a row in which it was running and not computed, because the step had no room
    block_table: list[int] = field(default_factory=list)
    seat: Seat | None = None  # while it has blocks: where they stand in the array of block tables
    status: Status = Status.WAITING
    late: bool = (
        False  # its mask was not there when it was to draw, or takes long: it has no part of a step before it is
    )
    history: History = field(init=False)  # of what was generated, for rules that look back

    def __post_init__(self) -> None:
        self.history = History.of(self.sampling, self.ids[: self.n_prompt])

    @property
    def key(self) -> Key:
        return self.request_id, self.index

    @property
    def embedding_bytes(self) -> int:
        """Bytes that the embeddings of its request take."""
        return sum(item.nbytes for item in self.media)

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was generated yet."""
        return self.n_tokens == self.n_prompt

    @property
    def decodes(self) -> bool:
        """Whether only its newest token is to be computed."""
        return self.n_computed >= self.n_prompt and self.n_tokens - self.n_computed == 1

    def answer(self, index: int) -> "Sequence":
        """Another answer to this fresh prompt. It samples with seed + index, wrapped to 64 bits."""
        seed = (self.sampling.seed + index + (1 << 63)) % (1 << 64) - (1 << 63)
        found = Sequence(
            request_id=self.request_id, index=index, client=self.client, ids=self.ids, borrows_ids=True,
            n_prompt=self.n_prompt, limit=self.limit, positions=self.positions, position_delta=self.position_delta,
            media=self.media, root=self.root,
            n_tokens=self.n_tokens, sampling=msgspec.structs.replace(self.sampling, seed=seed),
        )  # fmt: skip
        if self.history.form is not None:
            found.history.hold(self.history.form.fresh())
        return found

    def append(self, token: int) -> Finish | None:
        """Add a generated token. -> how the answer ends with it, if it does"""
        if self.borrows_ids:
            # Not before: what waits for its turn holds no room for an answer.
            ids = np.empty_like(self.ids)
            ids[: self.n_prompt] = self.ids[: self.n_prompt]
            self.ids, self.borrows_ids = ids, False
        self.ids[self.n_tokens] = token
        self.n_tokens += 1
        self.history.add(token)
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
