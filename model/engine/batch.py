"""One step as data: packed arrays with names and types, and the lengths and flags that the host keeps of them."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from torch import Tensor

from model.engine.plan import Chunk, Plan
from model.engine.sampling.metadata import SamplingMetadata
from model.engine.sampling.rows import Row, SamplingRows
from model.engine.sequence import Key, StoreKey
from model.engine.sequence import Sequence as Answer
from model.staging.layout import (
    N_FORWARD,
    ForwardArrays,
    Padding,
    SamplingArrays,
    forward_arrays,
    forward_layout,
    in_order,
    sampling_arrays,
)
from model.staging.packing import Field, Packer

PaddingFor = Callable[[Sequence[int]], Padding | None]
"""How a step of decodes is padded to a captured graph, by the tokens of each in the cache after it."""


class EmbeddingRows(NamedTuple):
    """Rows of a medium's embeddings that a chunk reaches."""

    item: StoreKey
    first: int
    last: int


class ScoredRows(NamedTuple):
    """Tokens of a prompt whose log-probabilities are wanted."""

    request_id: str
    n: int
    top_logprobs: int


class BatchHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The host's half of a batch. With the packed bytes it is enough for another process."""

    q_lens: tuple[int, ...]  # new tokens of each sequence, padding rows included
    kv_lens: tuple[int, ...]  # tokens of each in the cache after the step
    prompt_lens: tuple[int, ...]
    table_width: int  # blocks
    n_samples: int  # rows that are sampled from, padding rows not included
    padded: bool = False  # to the sizes of a captured graph
    media: tuple[EmbeddingRows, ...] = ()  # in the order of `media_rows`
    scored: tuple[ScoredRows, ...] = ()  # in the order of `scored`
    n_copies: int = 0
    n_prev_samples: int = 0
    sampling: SamplingMetadata

    def forward_layout(self) -> ForwardArrays[Field]:
        n_scored = sum([part.n for part in self.scored])
        return forward_layout(
            tokens=sum(self.q_lens),
            sequences=len(self.q_lens),
            width=self.table_width,
            samples=len(self.q_lens) if self.padded else self.n_samples + n_scored,
            media_rows=sum([part.last - part.first for part in self.media]),
            scored=n_scored,
            copies=self.n_copies,
            prev_samples=self.n_prev_samples,
        )


class Batch:
    """A header, and its arrays in a packer's memory. The host fills and sends them once; the next batch reuses it."""

    def __init__(self, header: BatchHeader, packer: Packer) -> None:
        self.header = header
        self._packing = packer.open(in_order(header.forward_layout(), header.sampling.layout()))
        self.host: ForwardArrays[np.ndarray] = forward_arrays(self._packing.host)
        self.host_sampling: SamplingArrays[np.ndarray] = sampling_arrays(self._packing.host)
        self.payload = self._packing.payload  # the packed bytes as they are sent; another process fills its own
        self.build_seconds = 0.0
        # Fills int32 [n_masked, words] on the host, while the forward pass runs, and says which rows are late: what
        # is sampled for them is no token. None: another process does.
        self.write_masks: Callable[[np.ndarray], list[int]] | None = None

    def forward_payload(self) -> list[memoryview]:
        """The beginnings of `payload` that hold what the forward pass reads; what is sampled from it lies behind."""
        return self._packing.beginning(N_FORWARD)

    def send(self) -> tuple[ForwardArrays[Tensor], SamplingArrays[Tensor]]:
        """Send the arrays to the device by one asynchronous copy. Nothing may be written to them afterwards."""
        found = self._packing.send()
        return forward_arrays(found), sampling_arrays(found)


class SequencesByKey(Protocol):
    """Looks up the sequence of a key."""

    def __getitem__(self, key: Key, /) -> Answer: ...


class BlockTables:
    """The block tables of running sequences as rows of one array, which is kept between steps."""

    def __init__(self, rows: int, width: int) -> None:
        """rows: sequences that have blocks at once; width: blocks of the longest."""
        self._rows = np.zeros((rows, width), np.int32)

    def row_of(self, answer: Answer) -> int:
        """Its row, in which what its table has grown by since the last call for this seat is written."""
        seat, table = answer.seat, answer.block_table
        assert seat is not None, "a sequence without blocks was planned"
        if seat.filled < len(table):
            self._rows[seat.row, seat.filled : len(table)] = table[seat.filled :]
            seat.filled = len(table)
        return seat.row

    def gather(self, rows: Sequence[int], out: np.ndarray) -> None:
        """out: int32 [rows, width] of at most the array's width; entries behind a table's end are never followed."""
        # "clip", since numpy would buffer `out` where it has to raise for a row that is none.
        self._rows[:, : out.shape[1]].take(rows, 0, out, "clip")


class BatchBuilder:
    """Makes the batch of a plan out of its sequences. Nothing else reads both."""

    def __init__(
        self, packer: Packer, tables: BlockTables, block_size: int, vocab_size: int, padding_for: PaddingFor
    ) -> None:
        self._packer, self._tables, self._padding_for = packer, tables, padding_for
        self._block_size, self._vocab_size = block_size, vocab_size

    def build(self, plan: Plan, sequences: SequencesByKey) -> Batch:
        started = time.perf_counter()
        chunks = plan.chunks
        answers = [sequences[chunk.key] for chunk in chunks]
        rows: list[Row] = []
        for chunk, answer in zip(chunks, answers, strict=True):
            if chunk.samples:
                rows.append(Row(answer.sampling, chunk.stop, answer.history))
                for index in chunk.followers:
                    follower = sequences[chunk.request_id, index]
                    rows.append(Row(follower.sampling, chunk.stop, follower.history))
        sampling = SamplingRows(rows, self._vocab_size)
        step = _Step(chunks, answers, self._tables, self._block_size)
        padding = self._padding_for(step.kv_lens) if step.decodes else None
        batch = Batch(step.header(sampling.metadata, padding), self._packer)
        step.write(batch.host, padding)
        sampling.write(batch.host_sampling)
        batch.write_masks = sampling.write_masks
        batch.build_seconds = time.perf_counter() - started
        return batch


class _Step:
    """The chunks of a plan and their sequences, as arrays over all of them."""

    def __init__(
        self, chunks: Sequence[Chunk], answers: Sequence[Answer], tables: BlockTables, block_size: int
    ) -> None:
        self._chunks, self._answers, self._tables, self._block_size = chunks, answers, tables, block_size
        self._rows = [tables.row_of(answer) for answer in answers]
        self.kv_lens = [chunk.stop for chunk in chunks]
        self._starts = np.array([chunk.start for chunk in chunks], np.int64)
        self._lengths = np.array(self.kv_lens, np.int64) - self._starts
        self._ends = self._lengths.cumsum()
        self._n_tokens = int(self._ends[-1])
        # Of each row that is sampled from the chunk: several answers sample their first token from the same row.
        self._samples = [i for i, chunk in enumerate(chunks) if chunk.samples for _ in (i, *chunk.followers)]
        self._generated = [  # chunks of one generated token
            i for i, chunk in enumerate(chunks) if chunk.stop - 1 == chunk.start >= answers[i].n_prompt
        ]
        self._scored = [i for i, chunk in enumerate(chunks) if chunk.scored[1]]
        self._copies = [pair for chunk in chunks for pair in chunk.copies]
        self._prev_samples = [(i, chunk.prev_sample) for i, chunk in enumerate(chunks) if chunk.prev_sample is not None]
        self._media = [part for i, answer in enumerate(answers) if answer.media for part in self._media_inside(i)]

    @property
    def decodes(self) -> bool:
        """Whether each of its sequences takes one generated token and samples the next one."""
        return len(self._generated) == len(self._samples) == len(self._chunks)

    def header(self, sampling: SamplingMetadata, padding: Padding | None) -> BatchHeader:
        chunks, answers = self._chunks, self._answers
        more = 0 if padding is None else padding.rows - len(chunks)
        return BatchHeader(
            q_lens=(*self._lengths.tolist(), *[1] * more),
            kv_lens=(*self.kv_lens, *[1] * more),
            # Padding that turns as a sequence of the step does asks for no frequencies of its own.
            prompt_lens=(*[answer.n_prompt for answer in answers], *[answers[-1].n_prompt] * more),
            table_width=max([len(answer.block_table) for answer in answers]) if padding is None else padding.width,
            n_samples=len(self._samples),
            padded=padding is not None,
            media=tuple([part for _, part in self._media]),
            scored=tuple([self._scored_rows(i) for i in self._scored]),
            n_copies=len(self._copies),
            n_prev_samples=len(self._prev_samples),
            sampling=sampling,
        )

    def write(self, host: ForwardArrays[np.ndarray], padding: Padding | None) -> None:
        n = len(self._chunks)
        self._tables.gather(self._rows, host.block_tables[:n])
        self._write_tokens(host.ids, host.positions)
        self._write_slots(host.slots, host.block_tables)
        self._write_samples(host)
        if host.media_rows is not None:
            rows = [np.arange(row, row + part.last - part.first) for row, part in self._media]
            np.concatenate(rows, out=host.media_rows)
        if host.copies is not None:
            host.copies[:] = np.array(self._copies).T
        if host.prev_samples is not None:
            places, samples = zip(*self._prev_samples, strict=True)
            host.prev_samples[:] = self._ends[list(places)] - 1, samples
        if padding is not None:
            padding.write(host, n)

    def _first_row(self, i: int) -> int:
        return int(self._ends[i] - self._lengths[i])

    def _scored_rows(self, i: int) -> ScoredRows:
        chunk = self._chunks[i]
        n = chunk.scored[1] - chunk.scored[0]
        return ScoredRows(chunk.request_id, n, self._answers[i].sampling.top_logprobs)

    def _write_tokens(self, ids: np.ndarray, positions: np.ndarray) -> None:
        """Generated tokens of all sequences at once, parts of prompts one by one."""
        chunks, answers, rows = self._chunks, self._answers, self._generated
        if len(rows) < len(chunks):
            for i in set(range(len(chunks))).difference(rows):
                chunk, part = chunks[i], slice(self._first_row(i), int(self._ends[i]))
                ids[part] = answers[i].ids[chunk.start : chunk.stop]
                positions[:, part] = answers[i].positions_of(chunk.start, chunk.stop)
        if rows:
            tokens = [answers[i].ids.item(chunks[i].start) for i in rows]
            at = [chunks[i].start + answers[i].position_delta for i in rows]
            places = slice(len(rows)) if len(rows) == len(chunks) else self._ends[rows] - 1
            ids[places], positions[:, places] = tokens, at

    def _write_slots(self, slots: np.ndarray, tables: np.ndarray) -> None:
        """block * block_size + offset of each token: its index, moved by as many blocks as its block is."""
        index, of = self._starts, np.arange(len(self._chunks))
        if self._n_tokens > len(of):
            firsts = self._ends - self._lengths
            index = np.arange(self._n_tokens) + np.repeat(self._starts - firsts, self._lengths)
            of = np.repeat(of, self._lengths)
        nth = index // self._block_size
        slots[: self._n_tokens] = (tables[of, nth] - nth) * self._block_size + index

    def _write_samples(self, host: ForwardArrays[np.ndarray]) -> None:
        """Rows that are sampled from come first, then the prompts' rows whose log-probabilities are wanted."""
        at = len(self._samples)
        host.sample_rows[:at] = self._ends[self._samples] - 1
        for i in self._scored:
            first, last = self._chunks[i].scored
            start, n = self._first_row(i) - self._chunks[i].start, last - first
            assert host.scored is not None
            host.sample_rows[at : at + n] = np.arange(first + start, last + start)
            at += n
            scored = at - len(self._samples)
            host.scored[scored - n : scored] = self._answers[i].ids[first + 1 : last + 1]

    def _media_inside(self, i: int) -> list[tuple[int, EmbeddingRows]]:
        """(row of the first placeholder, embeddings) of every part of a span inside chunk i."""
        chunk, answer = self._chunks[i], self._answers[i]
        if chunk.start >= answer.n_prompt:
            return []
        shift, parts = self._first_row(i) - chunk.start, []
        for item in answer.media:
            row = 0
            for start, length in item.spans:
                lo, hi = max(start, chunk.start), min(start + length, chunk.stop)
                if lo < hi:
                    parts.append((lo + shift, EmbeddingRows(item.stored, row + lo - start, row + hi - start)))
                row += length
        return parts
