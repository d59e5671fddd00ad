"""Packs the arrays of a step into one copy to the device, from pinned memory that is kept between steps.

The device's buffer never moves. Fields are laid out in the order in which they are given, so that the first ones lie at
the same addresses in every step that begins with fields of the same sizes: a captured graph reads them there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from model.staging.streams import Event, Streams

_ALIGNMENT = 64  # bytes of the beginning of a field
_GROWTH = 2  # of what does not fit: its buffer is made so many times as large as was asked for
_DTYPES = {"int64": torch.int64, "int32": torch.int32, "float32": torch.float32}
_SIZES = {"int64": 8, "int32": 4, "float32": 4}


@dataclass(frozen=True, slots=True)
class Field:
    """One array of a step."""

    dtype: Literal["int64", "int32", "float32"]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """From its beginning to that of the next field."""
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
        sizes = [0 if field is None else field.nbytes for field in fields]
        first = n = 0
        while n < len(fields) and first + sizes[n] <= self._fixed.room:
            first += sizes[n]
            n += 1
        second = sum(sizes[n:])
        if second > self._overflow.room:
            self._overflow = _Buffer(self._streams, _GROWTH * second)
        parts = [_Part(self._fixed, fields[:n], first)]
        if n < len(fields):
            parts.append(_Part(self._overflow, fields[n:], second))
        return Packing(parts)


class Packing:
    """The arrays of one step: written on the host, then sent."""

    def __init__(self, parts: Sequence["_Part"]) -> None:
        self._parts = parts
        self.host: list[np.ndarray | None] = [
            array for part in parts for array in part.arrays()
        ]  # as fields were given

    @property
    def payload(self) -> list[memoryview]:
        """The bytes that are sent."""
        return [part.payload for part in self._parts]

    def send(self) -> list[Tensor | None]:
        """The fields on the device; the copy is asynchronous. Nothing may be written to `host` any more."""
        return [tensor for part in self._parts for tensor in part.send()]


class _Part:
    """Fields in one buffer."""

    def __init__(self, buffer: "_Buffer", fields: Sequence[Field | None], nbytes: int) -> None:
        self._buffer, self._fields, self._nbytes = buffer, fields, nbytes
        self._memory = buffer.next_host()

    @property
    def payload(self) -> memoryview:
        return self._memory[: self._nbytes]

    def arrays(self) -> list[np.ndarray | None]:
        found, at = list[np.ndarray | None](), 0
        for field in self._fields:
            if field is None:
                found.append(None)
                continue
            found.append(np.ndarray(field.shape, field.dtype, self._memory, at))
            at += field.nbytes
        return found

    def send(self) -> list[Tensor | None]:
        self._buffer.send(self._nbytes)
        found, at = list[Tensor | None](), 0
        for field in self._fields:
            if field is None:
                found.append(None)
                continue
            found.append(self._buffer.view(field, at))
            at += field.nbytes
        return found


class _Buffer:
    """Memory on the device, and twice as much on the host; on a CPU both are the same."""

    def __init__(self, streams: Streams, nbytes: int) -> None:
        self.room = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        self._streams = streams
        self._hosts = [_Host(streams.host_memory(self.room)) for _ in range(2 if streams.behind else 1)]
        device = torch.empty(self.room, dtype=torch.uint8, device=streams.device) if streams.behind else None
        self._device = self._hosts[0].tensor if device is None else device
        self._typed = {name: self._device.view(dtype) for name, dtype in _DTYPES.items()}

    def next_host(self) -> memoryview:
        """The host's memory whose copy is done."""
        self._hosts.reverse()
        return self._hosts[0].reused()

    def send(self, nbytes: int) -> None:
        if self._streams.behind and nbytes:
            host = self._hosts[0]
            self._device[:nbytes].copy_(host.tensor[:nbytes], non_blocking=True)
            host.copied = self._streams.record()

    def view(self, field: Field, at: int) -> Tensor:
        strides = [1] * len(field.shape)
        for i in range(len(strides) - 2, -1, -1):
            strides[i] = strides[i + 1] * field.shape[i + 1]
        return self._typed[field.dtype].as_strided(field.shape, strides, at // _SIZES[field.dtype])


class _Host:
    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.copied: Event | None = None  # None: there is no copy that could still read it
        self._memory = tensor.numpy().data if len(tensor) else memoryview(b"")

    def reused(self) -> memoryview:
        if self.copied is not None and not self.copied.done():
            self.copied.wait()
        self.copied = None
        return self._memory
