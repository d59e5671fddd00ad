"""A plan as tensors, compared token by token with what the plan says."""

import numpy as np
import pytest
import torch

from model.engine import batch
from model.engine.kv_blocks import BlockAllocator
from model.engine.messages import SamplingParams
from model.engine.plan import Chunk, Plan
from model.engine.scheduler import Limits, Scheduler
from model.engine.sequence import Sequence, SequenceMedia
from tokenization.messages import MediaItem

CPU = torch.device("cpu")


def media(*spans: tuple[int, int], value: float) -> SequenceMedia:
    item = MediaItem(kind="image", spans=spans, grid=(1, 2, 2))
    n = sum(length for _, length in spans)
    embeddings = value + torch.arange(n, dtype=torch.float32)[:, None].expand(n, 2)
    return SequenceMedia(item=item, segment=None, embeddings=embeddings)


def scheduler_of(*sequences: Sequence) -> Scheduler:
    sched = Scheduler(BlockAllocator(64, 4), Limits(max_seqs=8, max_batched_tokens=64, embedding_bytes=0))
    for sequence in sequences:
        sched.add(sequence)
    return sched


def sequence_of(name: str, n_prompt: int, generated: int, delta: int, *found: SequenceMedia) -> Sequence:
    return Sequence(
        request_id=name, ids=np.arange(n_prompt + 8) + 100, n_prompt=n_prompt, limit=n_prompt + 8,
        positions=np.arange(n_prompt) * np.array([[1], [2], [3]]), position_delta=delta, media=found,
        embedding_bytes=0, sampling=SamplingParams(max_tokens=8, seed=0), n_tokens=n_prompt + generated,
    )  # fmt: skip


def chunk(name: str, start: int, stop: int, table: tuple[int, ...], samples: bool) -> Chunk:
    return Chunk(request_id=name, start=start, stop=stop, block_table=table, samples=samples, encode=())


def test_a_mixed_batch() -> None:
    decode = sequence_of("decode", 5, 2, -3)
    cut = sequence_of(
        "cut", 20, 0, 0, media((2, 4), value=10), media((7, 3), (12, 4), value=20), media((17, 2), value=30)
    )
    whole = sequence_of("whole", 3, 1, 7)
    plan = Plan(
        chunks=(
            chunk("decode", 6, 7, (9, 5), True),
            chunk("cut", 4, 14, (3, 8, 0, 1), False),
            chunk("whole", 0, 4, (2,), True),  # prompt and what was generated, after a preemption
        )
    )
    found = batch.build(plan, scheduler_of(decode, cut, whole), 4, CPU)
    assert found.ids.tolist() == [106, *range(104, 114), *range(100, 104)]
    assert found.positions[:, 0].tolist() == [3, 3, 3]  # index 6 with delta -3
    assert found.positions[:, 1].tolist() == [4, 8, 12] and found.positions[:, 10].tolist() == [13, 26, 39]
    assert found.positions[:, 13].tolist() == [2, 4, 6] and found.positions[:, 14].tolist() == [10, 10, 10]
    assert found.slots.tolist() == [22, 32, 33, 34, 35, 0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    assert found.block_tables.tolist() == [[9, 5, 0, 0], [3, 8, 0, 1], [2, 0, 0, 0]]
    assert found.block_tables.dtype == torch.int32
    assert found.q_lens == (1, 10, 4) and found.kv_lens == (7, 14, 4)
    assert found.sample_rows.tolist() == [0, 14]
    # Rows 1.. are tokens 4..13 of "cut": 4, 5 of the first item, 7..9 and 12, 13 of the second, none of the third.
    assert found.media_rows.tolist() == [1, 2, 4, 5, 6, 9, 10]
    assert found.media_embeds is not None
    assert found.media_embeds[:, 0].tolist() == [12, 13, 20, 21, 22, 23, 24]
    for tensor in (found.ids, found.positions, found.slots, found.media_rows, found.sample_rows):
        assert tensor.dtype == torch.int64


def test_without_media_and_without_samples() -> None:
    text = sequence_of("text", 6, 0, 0)
    found = batch.build(Plan(chunks=(chunk("text", 0, 3, (1, 2), False),)), scheduler_of(text), 4, CPU)
    assert found.media_embeds is None and found.media_rows.shape == (0,) and found.sample_rows.shape == (0,)


def test_a_medium_that_was_not_encoded_is_an_error() -> None:
    missing = media((1, 2), value=0)
    missing.embeddings = None
    sequence = sequence_of("a", 6, 0, 0, missing)
    with pytest.raises(RuntimeError):
        batch.build(Plan(chunks=(chunk("a", 0, 3, (1,), False),)), scheduler_of(sequence), 4, CPU)


def test_followers_draw_from_their_leaders_row() -> None:
    first, lead = sequence_of("first", 5, 1, 0), sequence_of("lead", 6, 0, 0)
    leading = Chunk(
        request_id="lead", start=0, stop=6, block_table=(3, 4), samples=True, encode=(), followers=(1, 2),
        copies=((4, 7), (4, 8)),
    )  # fmt: skip
    plan = Plan(chunks=(chunk("first", 5, 6, (1, 2), True), leading))
    assert leading.draws == (("lead", 0), ("lead", 1), ("lead", 2))
    assert batch.build(plan, scheduler_of(first, lead), 4, CPU).sample_rows.tolist() == [0, 6, 6, 6]
