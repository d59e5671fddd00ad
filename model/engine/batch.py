"""Turns a plan into tensors: ids, positions, slots, and the rows that media embeddings overwrite."""

import numpy as np
import torch
from torch import Tensor

from model.engine.plan import Chunk, Plan
from model.engine.scheduler import Scheduler
from model.engine.sequence import Sequence
from model.forward_batch import ForwardBatch


def build(plan: Plan, sequences: Scheduler, block_size: int, device: torch.device) -> ForwardBatch:
    """One step's tensors, in the order of the plan's chunks. Raises RuntimeError for a medium without embeddings."""
    ids, positions, slots, rows, embeds = [], [], [], [], []
    row = 0
    for chunk in plan.chunks:
        sequence = sequences[chunk.key]
        ids.append(sequence.ids[chunk.start : chunk.stop])
        positions.append(sequence.positions_of(chunk.start, chunk.stop))
        slots.append(_slots(chunk, block_size))
        for first, part in _media_inside(sequence, chunk):
            rows.append(np.arange(first, first + len(part), dtype=np.int64) + (row - chunk.start))
            embeds.append(part)
        row += chunk.length
    ends = np.cumsum([chunk.length for chunk in plan.chunks])
    firsts = ends - [chunk.length for chunk in plan.chunks]
    # What is drawn from comes first, then the prompts' rows whose log-probabilities are wanted.
    scored = [
        np.arange(*chunk.scored, dtype=np.int64) + (first - chunk.start)
        for chunk, first in zip(plan.chunks, firsts, strict=True)
    ]
    samples = [len(chunk.draws) for chunk in plan.chunks]  # several answers draw their first token from the same row
    return ForwardBatch(
        ids=_to(np.concatenate(ids), device),
        positions=_to(np.concatenate(positions, axis=1), device),
        media_rows=_to(np.concatenate(rows) if rows else np.empty(0, np.int64), device),
        media_embeds=torch.cat(embeds).to(device) if embeds else None,
        slots=_to(np.concatenate(slots), device),
        block_tables=_to(_block_tables(plan), device),
        q_lens=tuple(chunk.length for chunk in plan.chunks),
        kv_lens=tuple(chunk.stop for chunk in plan.chunks),
        sample_rows=_to(np.concatenate([np.repeat(ends, samples).astype(np.int64) - 1, *scored]), device),
        prompt_lens=tuple(sequences[chunk.key].n_prompt for chunk in plan.chunks),
    )


def _slots(chunk: Chunk, block_size: int) -> np.ndarray:
    """int64 [length]: block * block_size + offset of each token."""
    index = np.arange(chunk.start, chunk.stop, dtype=np.int64)
    blocks = np.array(chunk.block_table, dtype=np.int64)
    return blocks[index // block_size] * block_size + index % block_size


def _block_tables(plan: Plan) -> np.ndarray:
    """int32 [B, max_blocks], padded with block 0."""
    width = max(len(chunk.block_table) for chunk in plan.chunks)
    tables = np.zeros((len(plan.chunks), width), np.int32)
    for i, chunk in enumerate(plan.chunks):
        tables[i, : len(chunk.block_table)] = chunk.block_table
    return tables


def _media_inside(sequence: Sequence, chunk: Chunk) -> list[tuple[int, Tensor]]:
    """(index of the first pad, embeddings [n, hidden]) of every part of a span inside the chunk."""
    parts = []
    for media in sequence.media:
        row = 0
        for start, length in media.item.spans:
            lo, hi = max(start, chunk.start), min(start + length, chunk.stop)
            if lo < hi:
                if media.embeddings is None:
                    raise RuntimeError("a chunk reaches a medium that was not encoded")
                parts.append((lo, media.embeddings[row + lo - start : row + hi - start]))
            row += length
    return parts


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)
