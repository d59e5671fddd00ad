"""A plan as tensors, compared token by token with what the plan says."""

import numpy as np
import pytest
import torch

from model.engine.batch import Batch, BatchBuilder, BlockTables, EmbeddingRows
from model.engine.messages import SamplingParams
from model.engine.plan import Chunk, Plan
from model.engine.sequence import EncoderInput, Seat, Sequence
from model.staging.layout import ForwardArrays, Padding
from model.staging.packing import Field, Packer
from model.staging.streams import open_streams
from tests.model.engine.bookkeeping import medium

pytestmark = pytest.mark.network

BLOCK = 4  # tokens


def sequence_of(
    name: str, n_prompt: int, generated: int, delta: int, *found: EncoderInput, table: tuple[int, ...] = (1, 2)
) -> Sequence:
    return Sequence(
        request_id=name, ids=np.arange(n_prompt + 8) + 100, n_prompt=n_prompt, limit=n_prompt + 8,
        positions=np.arange(n_prompt) * np.array([[1], [2], [3]]), position_delta=delta, media=found,
        sampling=SamplingParams(max_tokens=8, seed=0), n_tokens=n_prompt + generated,
        block_table=list(table),
    )  # fmt: skip


def chunk(name: str, start: int, stop: int, samples: bool) -> Chunk:
    return Chunk(request_id=name, start=start, stop=stop, samples=samples)


class Built:
    """A batch, and its arrays as they were sent."""

    def __init__(self, batch: Batch) -> None:
        self.header = batch.header
        self.arrays: ForwardArrays[torch.Tensor] = batch.send()[0]


def build(
    chunks: tuple[Chunk, ...], *answers: Sequence, tables: BlockTables | None = None, padding: Padding | None = None
) -> Built:
    """The batch of these chunks, whose arrays were packed and sent."""
    for i, answer in enumerate(answers):
        answer.seat = answer.seat or Seat(len(answers) - 1 - i)
    found = {answer.key: answer for answer in answers}
    for chunk in chunks:
        for index in chunk.followers:
            found[chunk.request_id, index] = found[chunk.key]
    packer = Packer(open_streams(torch.device("cpu")), 4096)
    for array in packer.open([Field("int64", (512,))]).host:
        assert array is not None
        array[...] = -1  # nothing may be left as it was
    builder = BatchBuilder(packer, tables or BlockTables(8, 8), BLOCK, 1000, lambda kv_lens: padding)
    return Built(builder.build(Plan(chunks=chunks), found))


def test_a_mixed_batch() -> None:
    decode = sequence_of("decode", 5, 2, -3, table=(9, 5))
    cut = sequence_of(
        "cut", 20, 0, 0, medium(("cut", 0), (2, 4)), medium(("cut", 1), (7, 3), (12, 4)), medium(("cut", 2), (17, 2)),
        table=(3, 8, 0, 1),
    )  # fmt: skip
    whole = sequence_of("whole", 3, 1, 7, table=(2,))
    chunks = (
        chunk("decode", 6, 7, True),
        chunk("cut", 4, 14, False),
        chunk("whole", 0, 4, True),  # prompt and what was generated, after a preemption
    )
    found = build(chunks, decode, cut, whole)
    assert found.arrays.ids.tolist() == [106, *range(104, 114), *range(100, 104)]
    assert found.arrays.positions[:, 0].tolist() == [3, 3, 3]  # index 6 with delta -3
    assert found.arrays.positions[:, 1].tolist() == [4, 8, 12] and found.arrays.positions[:, 10].tolist() == [
        13,
        26,
        39,
    ]
    assert found.arrays.positions[:, 13].tolist() == [2, 4, 6] and found.arrays.positions[:, 14].tolist() == [
        10,
        10,
        10,
    ]
    assert found.arrays.slots.tolist() == [22, 32, 33, 34, 35, 0, 1, 2, 3, 4, 5, 8, 9, 10, 11]
    tables = [row[:n] for row, n in zip(found.arrays.block_tables.tolist(), (2, 4, 1), strict=True)]
    assert tables == [[9, 5], [3, 8, 0, 1], [2]]
    assert found.arrays.block_tables.dtype == torch.int32
    assert found.header.q_lens == (1, 10, 4) and found.header.kv_lens == (7, 14, 4)
    assert found.arrays.sample_rows.tolist() == [0, 14]
    # Rows 1.. are tokens 4..13 of "cut": 4, 5 of the first item, 7..9 and 12, 13 of the second, none of the third.
    assert found.arrays.media_rows is not None and found.arrays.media_rows.tolist() == [1, 2, 4, 5, 6, 9, 10]
    assert found.header.media == (
        EmbeddingRows(("cut", 0), 2, 4), EmbeddingRows(("cut", 1), 0, 3), EmbeddingRows(("cut", 1), 3, 5),
    )  # fmt: skip
    for tensor in (
        found.arrays.ids,
        found.arrays.positions,
        found.arrays.slots,
        found.arrays.media_rows,
        found.arrays.sample_rows,
    ):
        assert tensor.dtype == torch.int64


def test_without_media_and_without_samples() -> None:
    found = build((chunk("text", 0, 3, False),), sequence_of("text", 6, 0, 0))
    assert found.arrays.media_rows is None and found.arrays.sample_rows.shape == (0,) and found.header.n_samples == 0


def test_an_input_that_the_host_has_not_seen() -> None:
    """Beside one that it has: its place among the ids, and the row of the last step's samples."""
    seen, unseen = sequence_of("seen", 5, 1, 0), sequence_of("unseen", 6, 1, 0)
    later = Chunk(request_id="unseen", start=7, stop=8, samples=True, prev_sample=3)
    found = build((chunk("seen", 5, 6, True), later), seen, unseen)
    assert found.arrays.prev_samples is not None and found.arrays.prev_samples.tolist() == [[1], [3]]
    assert found.header.kv_lens == (6, 8) and found.arrays.positions[0].tolist() == [5, 7]


def test_followers_draw_from_their_leaders_row() -> None:
    first, lead = sequence_of("first", 5, 1, 0), sequence_of("lead", 6, 0, 0)
    leading = Chunk(
        request_id="lead", start=0, stop=6, samples=True, followers=(1, 2),
        copies=((4, 7), (4, 8)),
    )  # fmt: skip
    assert leading.sampled_keys == (("lead", 0), ("lead", 1), ("lead", 2))
    assert build((chunk("first", 5, 6, True), leading), first, lead).arrays.sample_rows.tolist() == [0, 6, 6, 6]


def test_a_table_is_written_as_it_grows_and_anew_with_a_new_seat() -> None:
    tables, text = BlockTables(2, 8), sequence_of("a", 3, 1, 0, table=(5,))
    assert build((chunk("a", 3, 4, True),), text, tables=tables).arrays.block_tables.tolist() == [[5]]
    text.block_table.append(7)
    text.block_table[0] = 6  # what stands there is not written again
    assert build((chunk("a", 3, 4, True),), text, tables=tables).arrays.block_tables.tolist() == [[5, 7]]
    text.seat = Seat(0)
    assert build((chunk("a", 3, 4, True),), text, tables=tables).arrays.block_tables.tolist() == [[6, 7]]


def test_padding_behind_a_decode_step() -> None:
    first, second = sequence_of("a", 3, 1, 2, table=(5,)), sequence_of("b", 5, 2, 0, table=(6, 7))
    chunks = (chunk("a", 3, 4, True), chunk("b", 6, 7, True))
    found = build(chunks, first, second, padding=Padding(rows=5, width=3, block=9, block_size=BLOCK))
    assert found.arrays.ids.tolist() == [103, 106, 0, 0, 0] and found.arrays.positions.tolist() == [[5, 6, 0, 0, 0]] * 3
    assert found.arrays.slots.tolist() == [23, 30, 36, 37, 38]  # the padding's own slots, one each
    assert [row[0] for row in found.arrays.block_tables.tolist()] == [
        5,
        6,
        9,
        9,
        9,
    ] and found.arrays.block_tables.shape == (5, 3)
    assert found.header.q_lens == (1,) * 5 and found.header.kv_lens == (4, 7, 1, 1, 1)
    assert found.arrays.sample_rows.tolist() == [0, 1, 2, 3, 4]
    assert found.header.prompt_lens == (3, 5, 5, 5, 5)  # no base of its own
