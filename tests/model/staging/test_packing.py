"""Arrays in one copy: what arrives is what was written, where a graph would look for it, and never too early."""

import numpy as np
import pytest
import torch

from model.staging.layout import step_fields
from model.staging.packing import Field, Packer
from model.staging.streams import Streams, open_streams
from tests.model.staging.late import Late

FIELDS = [
    Field("a", "int64", (3, 5)),
    Field("b", "int32", (4,)),
    Field("empty", "float32", (0,)),
    Field("c", "float32", (2, 7)),
]


def numbers(field: Field, first: int) -> np.ndarray:
    """Different ones everywhere."""
    return np.arange(first, first + int(np.prod(field.shape)), dtype=field.dtype).reshape(field.shape)


@pytest.mark.parametrize("room", [0, 100, 192, 4096], ids=["nothing fits", "half", "all but one", "all"])
@pytest.mark.parametrize("streams", [open_streams(torch.device("cpu")), Late()], ids=["cpu", "late"])
def test_what_is_written_arrives(streams: Streams, room: int) -> None:
    packer = Packer(streams, room)
    for step in range(4):
        packing = packer.open(FIELDS)
        for i, field in enumerate(FIELDS):
            packing.host[field.name][...] = numbers(field, 100 * step + 10 * i)
        sent = packing.send()
        for i, field in enumerate(FIELDS):
            assert sent[field.name].numpy().dtype == field.dtype and sent[field.name].is_contiguous()
            assert np.array_equal(sent[field.name].numpy(), numbers(field, 100 * step + 10 * i)), field


def test_fields_of_one_size_lie_at_the_same_addresses() -> None:
    """Whatever came between, and whatever lies behind them."""
    packer = Packer(Late(), 1 << 14)

    def addresses(n: int, *behind: Field) -> list[int]:
        sent = packer.open([*step_fields(tokens=n, sequences=n, width=6, samples=n), *behind]).send()
        return [sent[name].data_ptr() for name in ("ids", "positions", "slots", "sample_rows", "block_tables")]

    first = addresses(4)
    assert addresses(8) != first
    large = Field("rules", "int64", (1 << 14,))  # has to go elsewhere
    assert addresses(4, Field("rules", "float32", (5, 3)), large) == first == addresses(4)


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
    assert sent["a"].data_ptr() == packing.host["a"].ctypes.data
