"""Packs the arrays of a step into one copy to the device, from pinned memory that is kept between steps.

The device's buffer never moves. Fields are laid out in the order in which they are given, so that the first ones lie at
the same addresses in every step that begins with fields of the same sizes: a captured graph reads them there.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model.staging.streams import HostMemory, Streams

_ALIGNMENT = 64  # bytes of the beginning of a field
_GROWTH = 2  # of what does not fit: its buffer is made so many times as large as was asked for
_DTYPES = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}
_SIZES = {"int64": 8, "int32": 4, "float32": 4}


class Field(NamedTuple):
    """One array of a step."""

    dtype: Literal["int64", "int32", "float32"]
    shape: tuple[int] | tuple[int, int]

    @property
    def nbytes(self) -> int:
        """Bytes from its beginning to that of the next field."""
        return -(-math.prod(self.shape) * _SIZES[self.dtype] // _ALIGNMENT) * _ALIGNMENT


class Packer:
    """One buffer on the device that stays where it is, and one for what does not fit, which is made anew where it must.

    The host's side of each exists twice: an array is written while the copy of the step before may still run.
    """

    def __init__(self, streams: Streams, nbytes: int) -> None:
        """nbytes: of the buffer that stays; with `fields` behind them a step takes a second copy."""
        self._streams = streams
        self._fixed = _Buffer(streams, nbytes)
        self._overflow = _Buffer(streams, 0)

    def open(self, fields: Sequence[Field | None]) -> "Packing":
        """Room for these fields. The packing before ends on the host now, on the device when this one is sent."""
        places: list[_Place | None] = []
        used, which = [0, 0], 0
        for field in fields:
            if field is None:
                places.append(None)
                continue
            nbytes = field.nbytes
            if used[0] + nbytes > self._fixed.room:
                which = 1  # as all that follows
            places.append((field, which, used[which]))
            used[which] += nbytes
        if used[1] > self._overflow.room:
            self._overflow = _Buffer(self._streams, _GROWTH * used[1])
        return Packing([(self._fixed, used[0]), (self._overflow, used[1])][: which + 1], places)


class Packing:
    """The arrays of one step: written on the host, then sent."""

    def __init__(self, buffers: Sequence[tuple["_Buffer", int]], places: Sequence["_Place | None"]) -> None:
        """buffers: each with the bytes that are used of it."""
        self._buffers, self._places = buffers, places
        memories = [buffer.next_host() for buffer, _ in buffers]
        self.payload = [memory[:nbytes] for memory, (_, nbytes) in zip(memories, buffers, strict=True)]  # what is sent
        self.host: list[np.ndarray | None] = [  # as fields were given
            None if place is None else np.ndarray(place[0].shape, place[0].dtype, memories[place[1]], place[2])
            for place in places
        ]

    def beginning(self, n: int) -> list[memoryview]:
        """The bytes of the first `n` fields: a packing of these alone has them at the same places."""
        ends = [0]
        for field, which, at in [place for place in self._places[:n] if place is not None]:
            ends[which:] = [at + field.nbytes]
        return [part[:end] for part, end in zip(self.payload, ends, strict=False)]

    def send(self) -> list[Tensor | None]:
        """Send the fields to the device by an asynchronous copy. Nothing may be written to `host` afterwards."""
        for buffer, nbytes in self._buffers:
            buffer.send(nbytes)
        return [
            None if place is None else self._buffers[place[1]][0].view(place[0], place[2]) for place in self._places
        ]


_Place = tuple[Field, int, int]  # which buffer, and the byte at which it begins


class _Buffer:
    """Memory on the device, and twice as much on the host; on a CPU both are the same."""

    def __init__(self, streams: Streams, nbytes: int) -> None:
        self.room = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._streams = streams
        self._hosts = [HostMemory(streams.host_memory(self.room)) for _ in range(2 if streams.behind else 1)]
        device = torch.empty(self.room, dtype=torch.uint8, device=streams.device) if streams.behind else None
        self._device = self._hosts[0].tensor if device is None else device
        self._typed = {name: self._device.view(dtype) for name, dtype in _DTYPES.items()}

    def next_host(self) -> memoryview:
        """The host's memory whose copy is done."""
        self._hosts.reverse()
        self._hosts[0].wait()
        return self._hosts[0].bytes

    def send(self, nbytes: int) -> None:
        if self._streams.behind and nbytes:
            host = self._hosts[0]
            self._device[:nbytes].copy_(host.tensor[:nbytes], non_blocking=True)
            host.copied = self._streams.record()

    def view(self, field: Field, at: int) -> Tensor:
        strides = (1,) if len(field.shape) == 1 else (field.shape[1], 1)
        return self._typed[field.dtype].as_strided(field.shape, strides, at // _SIZES[field.dtype])
