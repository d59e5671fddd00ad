"""Tensors as they lie in the files of a checkpoint: where, in which dtype, and how their bytes are read."""

import json
import math
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.checkpoint import CheckpointError

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_HEADER_LIMIT = 100_000_000  # bytes, as the safetensors format has it
_READ_BYTES = 1 << 30  # Linux moves at most 2 GiB in one call


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor of a safetensors file, which is read and never mapped."""

    path: Path
    disk_name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int

    def read(self, label: str) -> Tensor:
        """A private copy in the dtype on disk. Raises CheckpointError where the file was cut short meanwhile."""
        return self._read(self.offset, self.shape, label)

    def rows(self, start: int, stop: int, label: str) -> Tensor:
        """Rows `start` to `stop` of the first dimension, or to the last one."""
        row = self.nbytes // self.shape[0]
        n = min(stop, self.shape[0]) - start
        return self._read(self.offset + start * row, (n, *self.shape[1:]), label)

    def _read(self, offset: int, shape: tuple[int, ...], label: str) -> Tensor:
        dtype = DTYPES[self.dtype]
        raw = torch.empty(math.prod(shape) * dtype.itemsize, dtype=torch.uint8)
        _read_into(raw.numpy().data, self.path, offset, label)
        return raw.view(dtype).view(shape)


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

    def read(self, label: str) -> Tensor:
        return self.mapped.contiguous().clone()

    def rows(self, start: int, stop: int, label: str) -> Tensor:
        return self.mapped[start:stop]


def label_of(entry: StoredTensor | PickledTensor) -> str:
    return f"{entry.path.name}: tensor {entry.disk_name!r}"


def read_pickle(path: Path) -> list[PickledTensor]:
    """The mapped tensors of a file that torch.save wrote. Raises CheckpointError for anything but plain tensors."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
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
    """The table of one safetensors file: 8 bytes of length, JSON, then the tensors' bytes. Raises CheckpointError."""
    size = path.stat().st_size
    if size < 8:
        raise CheckpointError(f"{path.name}: not a safetensors file: it has {size} bytes")
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > min(_HEADER_LIMIT, size - 8):
            raise CheckpointError(f"{path.name}: not a safetensors file, or cut short inside its header")
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            return [_entry(path, name, fields, 8 + length, size) for name, fields in header.items()]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise CheckpointError(f"{path.name}: broken safetensors header: {error!r}") from None


def _entry(path: Path, name: str, fields: dict[str, Any], base: int, size: int) -> StoredTensor:
    begin, end = fields["data_offsets"]
    shape = tuple(int(side) for side in fields["shape"])
    dtype = str(fields["dtype"])
    itemsize = DTYPES[dtype].itemsize if dtype in DTYPES else None
    if not 0 <= begin <= end or min(shape, default=0) < 0:
        raise ValueError(f"tensor {name!r} has offsets {begin}..{end} and shape {list(shape)}")
    if itemsize is not None and end - begin != itemsize * math.prod(shape):
        raise ValueError(f"tensor {name!r} has {end - begin} bytes for {dtype} {list(shape)}")
    if base + end > size:
        raise CheckpointError(f"{path.name}: cut short: tensor {name!r} ends at byte {base + end}, the file at {size}")
    return StoredTensor(path, name, dtype, shape, base + begin, end - begin)


def _read_into(target: memoryview, path: Path, offset: int, label: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(target):
            got = os.preadv(fd, [target[done : done + _READ_BYTES]], offset + done)
            if got == 0:
                raise CheckpointError(f"{label}: the file ends inside it")
            done += got
    finally:
        os.close(fd)
