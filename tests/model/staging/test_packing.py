"""Arrays in one copy: what arrives is what was written, where a graph would look for it, and never too early."""

import numpy as np
import pytest
import torch

from model.staging.layout import forward_arrays, forward_layout, in_order
from model.staging.packing import Field, Packer
from model.staging.streams import Streams, open_streams
from tests.model.staging.late import Late
from tests.tables import each_of

pytestmark = pytest.mark.network

FIELDS = [
    Field("int64", (3, 5)),
    Field("int32", (4,)),
    Field("float32", (0,)),
    Field("float32", (2, 7)),
]


def numbers(field: Field, first: int) -> np.ndarray:
    """Different ones everywhere."""
    return np.arange(first, first + int(np.prod(field.shape)), dtype=field.dtype).reshape(field.shape)


@each_of("room", [0, 100, 192, 4096], ids=["nothing fits", "half", "all but one", "all"])
@each_of("streams", [open_streams(torch.device("cpu")), Late()], ids=["cpu", "late"])
def test_what_is_written_arrives(streams: Streams, room: int) -> None:
    packer = Packer(streams, room)
    for step in range(4):
        packing = packer.open(FIELDS)
        for i, (field, array) in enumerate(zip(FIELDS, packing.host, strict=True)):
            assert array is not None
            array[...] = numbers(field, 100 * step + 10 * i)
        for i, (field, sent) in enumerate(zip(FIELDS, packing.send(), strict=True)):
            assert sent is not None and sent.numpy().dtype == field.dtype and sent.is_contiguous()
            assert np.array_equal(sent.numpy(), numbers(field, 100 * step + 10 * i)), field


def test_a_field_that_a_step_lacks_takes_nothing() -> None:
    packing = Packer(open_streams(torch.device("cpu")), 4096).open([FIELDS[0], None, FIELDS[1]])
    first, none, last = packing.host
    assert none is None and first is not None and last is not None
    first[...], last[...] = 7, 8
    assert [sent if sent is None else sent.sum().item() for sent in packing.send()] == [105, None, 32]
    assert [len(part) for part in packing.payload] == [FIELDS[0].nbytes + FIELDS[1].nbytes]


def test_fields_of_one_size_lie_at_the_same_addresses() -> None:
    """Whatever came between, and whatever lies behind them."""
    packer = Packer(Late(), 1 << 14)

    def addresses(n: int, *behind: Field) -> list[int]:
        layout = in_order(forward_layout(tokens=n, sequences=n, width=6, samples=n))
        sent = forward_arrays(packer.open([*layout, *behind]).send())
        return [x.data_ptr() for x in (sent.ids, sent.positions, sent.slots, sent.sample_rows, sent.block_tables)]

    first = addresses(4)
    assert addresses(8) != first
    large = Field("int64", (1 << 14,))  # has to go elsewhere
    assert addresses(4, Field("float32", (5, 3)), large) == first == addresses(4)


def test_memory_is_written_again_only_behind_its_copy() -> None:
    streams = Late()
    packer = Packer(streams, 4096)
    for waits in (0, 0, 1, 2, 3):  # two are used in turn
        packing = packer.open(FIELDS)
        assert streams.waits == waits
        packing.send()


def test_a_cpu_has_no_second_copy() -> None:
    packing = Packer(open_streams(torch.device("cpu")), 4096).open(FIELDS)
    sent = packing.send()
    assert sent[0] is not None and packing.host[0] is not None
    assert sent[0].data_ptr() == packing.host[0].ctypes.data
