"""A plan as tensors, compared token by token with what the plan says."""

import numpy as np
import pytest
import torch

from model.engine.batch import Step
from model.engine.messages import SamplingParams
from model.engine.plan import Chunk, Plan
from model.engine.sequence import Sequence, SequenceMedia
from model.forward_batch import ForwardBatch
from model.staging.layout import Padding
from model.staging.packing import Packer
from model.staging.streams import open_streams
from model.staging.tables import Seat, Tables
from tokenization.messages import MediaItem

BLOCK = 4  # tokens


def media(*spans: tuple[int, int], value: float) -> SequenceMedia:
    item = MediaItem(kind="image", spans=spans, grid=(1, 2, 2))
    n = sum(length for _, length in spans)
    embeddings = value + torch.arange(n, dtype=torch.float32)[:, None].expand(n, 2)
    return SequenceMedia(item=item, segment=None, embeddings=embeddings)


def sequence_of(
    name: str, n_prompt: int, generated: int, delta: int, *found: SequenceMedia, table: tuple[int, ...] = (1, 2)
) -> Sequence:
    return Sequence(
        request_id=name, ids=np.arange(n_prompt + 8) + 100, n_prompt=n_prompt, limit=n_prompt + 8,
        positions=np.arange(n_prompt) * np.array([[1], [2], [3]]), position_delta=delta, media=found,
        embedding_bytes=0, sampling=SamplingParams(max_tokens=8, seed=0), n_tokens=n_prompt + generated,
        block_table=list(table),
    )  # fmt: skip


def chunk(name: str, start: int, stop: int, samples: bool) -> Chunk:
    return Chunk(request_id=name, start=start, stop=stop, samples=samples, encode=())


def build(
    chunks: tuple[Chunk, ...], *answers: Sequence, tables: Tables | None = None, padding: Padding | None = None
) -> ForwardBatch:
    """The step of these chunks, whose arrays were packed and sent."""
    for i, answer in enumerate(answers):
        answer.seat = answer.seat or Seat(len(answers) - 1 - i)
    step = Step(Plan(chunks=chunks), answers, tables or Tables(8, 8), BLOCK)
    if padding is not None:
        assert step.decodes
        step.padding = padding
    packing = Packer(open_streams(torch.device("cpu")), 4096).open(step.fields())
    for array in packing.host.values():
        array[...] = -1  # nothing may be left as it was
    step.write(packing.host)
    return step.batch(packing.send())


def test_a_mixed_batch() -> None:
    decode = sequence_of("decode", 5, 2, -3, table=(9, 5))
    cut = sequence_of(
        "cut", 20, 0, 0, media((2, 4), value=10), media((7, 3), (12, 4), value=20), media((17, 2), value=30),
        table=(3, 8, 0, 1),
    )  # fmt: skip
    whole = sequence_of("whole", 3, 1, 7, table=(2,))
    chunks = (
        chunk("decode", 6, 7, True),
        chunk("cut", 4, 14, False),
        chunk("whole", 0, 4, True),  # prompt and what was generated, after a preemption
    )
    found = build(chunks, decode, cut, whole)
    assert found.ids.tolist() == [106, *range(104, 114), *range(100, 104)]
    assert found.positions[:, 0].tolist() == [3, 3, 3]  # index 6 with delta -3
    assert found.positions[:, 1].tolist() == [4, 8, 12] and found.positions[:, 10].tolist() == [13, 26, 39]
    assert found.positions[:, 13].tolist() == [2, 4, 6] and found.positions[:, 14].tolist() == [10, 10, 10]
    assert found.slots.tolist() == [22, 32, 33, 34, 35, 0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    tables = [row[:n] for row, n in zip(found.block_tables.tolist(), (2, 4, 1), strict=True)]
    assert tables == [[9, 5], [3, 8, 0, 1], [2]]
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
    found = build((chunk("text", 0, 3, False),), text)
    assert found.media_embeds is None and found.media_rows.shape == (0,) and found.sample_rows.shape == (0,)


def test_a_medium_that_was_not_encoded_is_an_error() -> None:
    missing = media((1, 2), value=0)
    missing.embeddings = None
    sequence = sequence_of("a", 6, 0, 0, missing)
    with pytest.raises(RuntimeError):
        build((chunk("a", 0, 3, False),), sequence)


def test_followers_draw_from_their_leaders_row() -> None:
    first, lead = sequence_of("first", 5, 1, 0), sequence_of("lead", 6, 0, 0)
    leading = Chunk(
        request_id="lead", start=0, stop=6, samples=True, encode=(), followers=(1, 2),
        copies=((4, 7), (4, 8)),
    )  # fmt: skip
    assert leading.draws == (("lead", 0), ("lead", 1), ("lead", 2))
    assert build((chunk("first", 5, 6, True), leading), first, lead).sample_rows.tolist() == [0, 6, 6, 6]


def test_a_table_is_written_as_it_grows_and_anew_with_a_new_seat() -> None:
    tables, text = Tables(2, 8), sequence_of("a", 3, 1, 0, table=(5,))
    assert build((chunk("a", 3, 4, True),), text, tables=tables).block_tables.tolist() == [[5]]
    text.block_table.append(7)
    text.block_table[0] = 6  # what stands there is not written again
    assert build((chunk("a", 3, 4, True),), text, tables=tables).block_tables.tolist() == [[5, 7]]
    text.seat = Seat(0)
    assert build((chunk("a", 3, 4, True),), text, tables=tables).block_tables.tolist() == [[6, 7]]


def test_padding_behind_a_decode_step() -> None:
    first, second = sequence_of("a", 3, 1, 2, table=(5,)), sequence_of("b", 5, 2, 0, table=(6, 7))
    chunks = (chunk("a", 3, 4, True), chunk("b", 6, 7, True))
    found = build(chunks, first, second, padding=Padding(rows=5, width=3, block=9, block_size=BLOCK))
    assert found.ids.tolist() == [103, 106, 0, 0, 0] and found.positions.tolist() == [[5, 6, 0, 0, 0]] * 3
    assert found.slots.tolist() == [23, 30, 36, 37, 38]  # the padding's own slots, one each
    assert [row[0] for row in found.block_tables.tolist()] == [5, 6, 9, 9, 9] and found.block_tables.shape == (5, 3)
    assert found.q_lens == (1,) * 5 and found.kv_lens == (4, 7, 1, 1, 1)
    assert found.sample_rows.tolist() == [0, 1, 2, 3, 4]
    assert found.prompt_lens == (3, 5, 5, 5, 5)  # no base of its own
