"""Tensors as they lie in the files of a checkpoint: where, in which dtype, and how their bytes are read."""

import math
import os
import pickle
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from configs.checkpoint import CheckpointError, refuse_pointer
from configs.weight_files import read_table, unreadable

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_READ_BYTES = 1 << 30  # Linux moves at most 2 GiB in one call
_AHEAD_BYTES = 1 << 21


@dataclass(frozen=True, slots=True)
class Cut:
    """What of a tensor is wanted."""

    rows: tuple[range, ...] | None = None  # of the first dimension, in this order; None: all
    columns: range | None = None  # of the second one of two; None: all

    def shape(self, whole: tuple[int, ...]) -> tuple[int, ...]:
        """Of what is left of a tensor of shape `whole`."""
        shape = whole if self.rows is None else (sum(map(len, self.rows)), *whole[1:])
        return shape if self.columns is None else (shape[0], len(self.columns))


WHOLE = Cut()


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file, which is read and never mapped."""

    path: Path
    disk_name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int

    def read(self, label: str, cut: Cut = WHOLE) -> Tensor:
        """A private copy of what is wanted, in the dtype on disk: no other byte is read.

        Raises CheckpointError where the file was cut short meanwhile.
        """
        dtype, shape = DTYPES[self.dtype], cut.shape(self.shape)
        raw = torch.empty(math.prod(shape) * dtype.itemsize, dtype=torch.uint8)
        spans = self._spans(cut, dtype.itemsize)
        _read_into(raw.numpy().data, self.path, spans, label, ahead=None if cut.columns is None else _AHEAD_BYTES)
        return raw.view(dtype).view(shape)

    def _spans(self, cut: Cut, itemsize: int) -> Iterator[tuple[int, int]]:
        """(where in the file, bytes) of what follows each other in memory."""
        if cut == WHOLE:
            yield self.offset, self.nbytes
            return
        row = math.prod(self.shape[1:]) * itemsize
        for rows in (range(self.shape[0]),) if cut.rows is None else cut.rows:
            if cut.columns is None:
                yield self.offset + rows.start * row, len(rows) * row
                continue
            inside, n = cut.columns.start * itemsize, len(cut.columns) * itemsize
            yield from ((self.offset + i * row + inside, n) for i in rows)


@dataclass(frozen=True, slots=True)
class PickledTensor:
    """A tensor of a torch file: mapped, not read; the mapping goes with the last tensor of its file."""

    path: Path
    disk_name: str
    dtype: str
    shape: tuple[int, ...]
    mapped: Tensor

    @property
    def nbytes(self) -> int:
        return self.mapped.nbytes

    def read(self, label: str, cut: Cut = WHOLE) -> Tensor:
        """A private copy of what is wanted; the pages of the rest are not touched."""
        columns = cut.columns
        found = self.mapped if columns is None else self.mapped[:, columns.start : columns.stop]
        if cut.rows is None:
            return found.contiguous().clone()
        return torch.cat([found[rows.start : rows.stop] for rows in cut.rows] or [found[:0]]).contiguous()


def label_of(entry: StoredTensor | PickledTensor) -> str:
    return f"{entry.path.name}: tensor {entry.disk_name!r}"


def read_pickle(path: Path) -> list[PickledTensor]:
    """The mapped tensors of a file that torch.save wrote.

    Raises CheckpointError for anything but plain tensors, and for a file that cannot be read.
    """
    names = {dtype: name for name, dtype in DTYPES.items()}
    try:
        with path.open("rb") as file:
            refuse_pointer(path.name, file.read(64))
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError as error:
        raise unreadable(path, error) from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path.name}: damaged, or not a zip file of plain tensors ({type(error).__name__})"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path.name}: not a table of tensors by name")
    return [
        PickledTensor(path, str(name), names.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), tensor)
        for name, tensor in content.items()
    ]


def read_header(path: Path) -> list[StoredTensor]:
    """The tensors of a safetensors file, none of which is read. Raises CheckpointError."""
    return [StoredTensor(path, one.name, one.dtype, one.shape, one.offset, one.nbytes) for one in read_table(path)]


def _read_into(target: memoryview, path: Path, spans: Iterable[tuple[int, int]], label: str, ahead: int | None) -> None:
    """spans: (where in the file, bytes), one after the other into the target.

    ahead: bytes that the disk is asked for before they are read, with what lies between the spans; None: as it likes.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = asked = 0
        for offset, nbytes in spans:
            if ahead is not None and offset >= asked:
                os.posix_fadvise(fd, offset, ahead, os.POSIX_FADV_WILLNEED)
                asked = offset + ahead
            end, at = done + nbytes, offset - done
            while done < end:
                got = os.preadv(fd, [target[done : min(end, done + _READ_BYTES)]], at + done)
                if got == 0:
                    raise CheckpointError(f"{label}: the file ends inside it")
                done += got
    finally:
        os.close(fd)
