"""Turns a plan into tensors: ids, positions, slots, and the rows that media embeddings overwrite."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from model.engine.plan import Chunk, Plan
from model.engine.sequence import Sequence as Answer
from model.forward_batch import ForwardBatch
from model.staging.layout import Padding, step_fields
from model.staging.packing import Field
from model.staging.tables import Seat, Tables


class Step:
    """One plan, whose chunks' sequences are `answers`: which arrays it has, and what stands in them."""

    def __init__(self, plan: Plan, answers: Sequence[Answer], tables: Tables, block_size: int) -> None:
        """Raises RuntimeError for a medium without embeddings."""
        chunks = plan.chunks
        self._chunks, self.answers, self._tables, self._block_size = chunks, answers, tables, block_size
        self._rows = [tables.append(_seat(answer), answer.block_table) for answer in answers]
        self._starts = np.array([chunk.start for chunk in chunks], np.int64)
        self._lengths = np.array([chunk.stop for chunk in chunks], np.int64) - self._starts
        self._ends = self._lengths.cumsum()
        self.n_tokens = int(self._ends[-1])
        self.n_drawn = sum(len(chunk.followers) + 1 for chunk in chunks if chunk.samples)
        self.scored = [i for i, chunk in enumerate(chunks) if chunk.scored[1]]
        self._copies = [pair for chunk in chunks for pair in chunk.copies]
        self._media = [part for i in range(len(chunks)) if answers[i].media for part in self._media_inside(i)]
        self.padding: Padding | None = None  # of a step that `decodes`: to the sizes of a captured one

    @property
    def decodes(self) -> bool:
        """Each of its sequences takes one generated token and draws the next one."""
        return self.n_tokens == self.n_drawn == len(self._chunks) and all(
            chunk.start >= answer.n_prompt for chunk, answer in zip(self._chunks, self.answers, strict=True)
        )

    @property
    def table_blocks(self) -> int:
        """That its sequences name together, shared ones counted for each."""
        return sum(-(-chunk.stop // self._block_size) for chunk in self._chunks)

    def fields(self) -> list[Field]:
        if self.padding is not None:
            return self.padding.fields()
        samples = self.n_drawn + sum(self._n_scored(i) for i in self.scored)
        width = max(len(answer.block_table) for answer in self.answers)
        found = step_fields(tokens=self.n_tokens, sequences=len(self._chunks), width=width, samples=samples)
        if self._media:
            found.append(Field("media_rows", "int64", (sum(len(part) for _, part in self._media),)))
        if self.scored:
            found.append(Field("scored", "int64", (samples - self.n_drawn,)))
        if self._copies:
            found.append(Field("copies", "int64", (2, len(self._copies))))
        return found

    def write(self, host: Mapping[str, np.ndarray]) -> None:
        """Into the arrays of `fields`."""
        n, tables = len(self._chunks), host["block_tables"]
        self._tables.gather(self._rows, tables[:n])
        self._write_tokens(host["ids"], host["positions"])
        self._write_slots(host["slots"], tables)
        self._write_samples(host)
        if self._media:
            rows = [np.arange(first, first + len(part)) for first, part in self._media]
            np.concatenate(rows, out=host["media_rows"])
        if self._copies:
            host["copies"][:] = np.array(self._copies).T
        if self.padding is not None:
            self.padding.write(host, n)

    def batch(self, arrays: Mapping[str, Tensor]) -> ForwardBatch:
        """arrays: the fields on the device."""
        more = 0 if self.padding is None else self.padding.rows - len(self._chunks)
        # From host memory where the device's copy was given up: pinned, so that nobody waits.
        embeds = [part.to(arrays["ids"].device, non_blocking=True) for _, part in self._media]
        return ForwardBatch(
            ids=arrays["ids"],
            positions=arrays["positions"],
            media_rows=arrays["media_rows"] if embeds else arrays["ids"][:0],
            media_embeds=torch.cat(embeds) if embeds else None,
            slots=arrays["slots"],
            block_tables=arrays["block_tables"],
            q_lens=(*self._lengths.tolist(), *[1] * more),
            kv_lens=(*[chunk.stop for chunk in self._chunks], *[1] * more),
            sample_rows=arrays["sample_rows"],
            # Padding that turns as a sequence of the step does asks for no frequencies of its own.
            prompt_lens=(*[answer.n_prompt for answer in self.answers], *[self.answers[-1].n_prompt] * more),
        )

    def _n_scored(self, i: int) -> int:
        first, last = self._chunks[i].scored
        return last - first

    def _first_row(self, i: int) -> int:
        return int(self._ends[i] - self._lengths[i])

    def _write_tokens(self, ids: np.ndarray, positions: np.ndarray) -> None:
        """Generated tokens of all sequences at once, parts of prompts one by one."""
        rows, tokens, at = [], [], []
        for i, (chunk, answer) in enumerate(zip(self._chunks, self.answers, strict=True)):
            if chunk.stop - chunk.start == 1 and chunk.start >= answer.n_prompt:
                rows.append(i)
                tokens.append(answer.ids.item(chunk.start))
                at.append(chunk.start + answer.position_delta)
            else:
                part = slice(self._first_row(i), int(self._ends[i]))
                ids[part] = answer.ids[chunk.start : chunk.stop]
                positions[:, part] = answer.positions_of(chunk.start, chunk.stop)
        if len(rows) == self.n_tokens:
            ids[: len(rows)], positions[:, : len(rows)] = tokens, at
        elif rows:
            places = self._ends[rows] - 1
            ids[places], positions[:, places] = tokens, at

    def _write_slots(self, slots: np.ndarray, tables: np.ndarray) -> None:
        """block * block_size + offset of each token"""
        index, of = self._starts, np.arange(len(self._chunks))
        if self.n_tokens > len(of):
            firsts = self._ends - self._lengths
            index = np.arange(self.n_tokens) + np.repeat(self._starts - firsts, self._lengths)
            of = np.repeat(of, self._lengths)
        block, offset = np.divmod(index, self._block_size)
        slots[: self.n_tokens] = tables[of, block].astype(np.int64) * self._block_size + offset

    def _write_samples(self, host: Mapping[str, np.ndarray]) -> None:
        """What is drawn from comes first, then the prompts' rows whose log-probabilities are wanted."""
        rows = host["sample_rows"]
        # Several answers draw their first token from the same row.
        samples = [len(chunk.followers) + 1 if chunk.samples else 0 for chunk in self._chunks]
        rows[: self.n_drawn] = np.repeat(self._ends - 1, samples)
        at = 0
        for i in self.scored:
            (first, last), n = self._chunks[i].scored, self._n_scored(i)
            start = self._first_row(i) - self._chunks[i].start
            rows[self.n_drawn + at : self.n_drawn + at + n] = np.arange(first + start, last + start)
            host["scored"][at : at + n] = self.answers[i].ids[first + 1 : last + 1]
            at += n

    def _media_inside(self, i: int) -> list[tuple[int, Tensor]]:
        """(row of the first pad, embeddings [n, hidden]) of every part of a span inside chunk i."""
        chunk, answer = self._chunks[i], self.answers[i]
        if chunk.start >= answer.n_prompt:
            return []
        return _spans_inside(answer, chunk, self._first_row(i) - chunk.start)


def _seat(answer: Answer) -> Seat:
    if answer.seat is None:
        raise RuntimeError("a sequence without blocks was planned")
    return answer.seat


def _spans_inside(answer: Answer, chunk: Chunk, shift: int) -> list[tuple[int, Tensor]]:
    """As `_media_inside`; shift: from an index of the sequence to a row of the batch."""
    parts = []
    for media in answer.media:
        row = 0
        for start, length in media.item.spans:
            lo, hi = max(start, chunk.start), min(start + length, chunk.stop)
            if lo < hi:
                parts.append((lo + shift, media.part(row + lo - start, row + hi - start)))
            row += length
    return parts
