"""Reads the tensors of a checkpoint one by one, as a network asks for them."""

import json
import logging
import math
import os
import pickle
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from configs.checkpoint import Checkpoint, CheckpointError
from configs.quantised import refuse_quantised_tensor
from model.weight_files import first_file, shards

log = logging.getLogger("pixelferry")

_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
# Tables that old releases saved and every network makes itself. transformers skips the first two patterns for all
# (modeling_utils._adjust_missing_and_unexpected_keys), classes on the hub the third; the last it does not expect.
_LEFT_OVER = re.compile(
    r"rotary(_pos)?_emb\.(original_)?inv_freq$|(^|\.)position_ids$|\.attn\.masked_bias$"
    r"|audio_tower\.positional_embedding\.positional_embedding$"
)
_HEADER_LIMIT = 100_000_000  # bytes, as the safetensors format has it
_READ_BYTES = 1 << 30  # Linux moves at most 2 GiB in one call
_COMPARED_BYTES = 1 << 24  # of one side of a comparison at a time
_SHOWN = 6


@dataclass(frozen=True, slots=True)
class _Entry:
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
        dtype = _DTYPES[self.dtype]
        raw = torch.empty(math.prod(shape) * dtype.itemsize, dtype=torch.uint8)
        _read_into(raw.numpy().data, self.path, offset, label)
        return raw.view(dtype).view(shape)


@dataclass(frozen=True, slots=True)
class _Pickled:
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


class Weights:
    """A checkpoint's tensors under the names that its family's `build` uses: of safetensors, else of torch's own files.

    `take` reads one tensor, so memory stays within about one tensor of what the caller holds. Safetensors are not
    mapped: a file that is cut short is an error and not a signal.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        renames: Mapping[str, str],
        dtype: torch.dtype,
        device: torch.device | None = None,
        skips: tuple[str, ...] = (),
        on_read: Callable[[int, int], None] | None = None,
    ) -> None:
        """Read the headers. Raises CheckpointError for a missing, broken or ambiguous file.

        renames: prefix on disk -> internal prefix, longest first; skips: prefixes on disk to ignore; device None: CPU;
        on_read: told (bytes read, bytes in all) after each tensor.
        """
        self._where = checkpoint.path
        self._dtype = dtype
        self._device = device or torch.device("cpu")
        self._on_read = on_read
        self._read_bytes = 0
        self.taken_bytes = 0  # of all tensors handed out, in the dtype they were handed out in
        self._entries: dict[str, _Entry | _Pickled] = {}
        files, warning = _files(checkpoint)
        if warning:
            self.warn(warning)
        for path in files:
            for entry in _read_pickle(path) if path.suffix == ".bin" else _read_header(path):
                if entry.disk_name.startswith(skips) or _LEFT_OVER.search(entry.disk_name):
                    continue
                refuse_quantised_tensor(path.name, entry.disk_name)
                name = _internal_name(entry.disk_name, renames)
                if name in self._entries:
                    raise CheckpointError(
                        f"{path.name}: tensor {entry.disk_name!r} and {self._entries[name].disk_name!r} "
                        f"of {self._entries[name].path.name} both mean {name!r}"
                    )
                self._entries[name] = entry
        self._total_bytes = sum(entry.nbytes for entry in self._entries.values())

    def has(self, name: str) -> bool:
        return name in self._entries

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        """The shape of a tensor that nobody took yet; None where there is none."""
        return self._entries[name].shape if name in self._entries else None

    def take(self, name: str, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Read one tensor, once. Raises CheckpointError when it is missing, misshapen or not of floats."""
        entry = self._entries.pop(name, None)
        if entry is None:
            raise CheckpointError(f"{self._where}: tensor {name!r} is missing")
        label = _label(entry)
        if shape is not None and entry.shape != shape:
            raise CheckpointError(f"{label} has shape {list(entry.shape)}, the configuration asks for {list(shape)}")
        if entry.dtype not in _DTYPES:
            raise CheckpointError(f"{label} is stored as {entry.dtype} (supported: {', '.join(_DTYPES)})")
        if self._device.type == "meta":  # only shapes are wanted
            tensor = torch.empty(entry.shape, dtype=dtype or self._dtype, device=self._device)
        else:
            tensor = entry.read(label).to(self._device, dtype or self._dtype)
            self._read_bytes += entry.nbytes
            if self._on_read is not None:
                self._on_read(self._read_bytes, self._total_bytes)
        self.taken_bytes += tensor.nbytes
        return tensor

    def check_blocks(self, prefix: str, n: int) -> None:
        """Raises CheckpointError where fewer than `n` blocks lie under `prefix`N: before anything is made of the first.

        What lies there beyond them is for `finish`.
        """
        held = {name[len(prefix) :].partition(".")[0] for name in self._entries if name.startswith(prefix)}
        if n > len(held):
            raise CheckpointError(f"config.json asks for {n} layers {prefix}N, and the weights hold {len(held)}")

    def equal(self, one: str, other: str) -> bool:
        """Whether two matrices on disk hold the same numbers in the dtype asked for; both may still be taken.

        Read in pieces up to the first difference, also for the meta device, where shapes alone cannot tell.
        """
        first, second = self._entries[one], self._entries[other]
        if first.shape != second.shape or not {first.dtype, second.dtype} <= _DTYPES.keys():
            return False
        n = first.shape[0]
        step = max(1, _COMPARED_BYTES * n // max(1, first.nbytes))
        return all(
            torch.equal(*(entry.rows(i, i + step, _label(entry)).to(self._dtype) for entry in (first, second)))
            for i in range(0, n, step)
        )

    def warn(self, message: str) -> None:
        """Log it, but not on the meta device: there a network is built for the second time."""
        if self._device.type != "meta":
            log.warning(message)

    def drop(self, name: str) -> None:
        """Accept that `name` is on disk (or not) without using it."""
        self._entries.pop(name, None)

    def drop_under(self, prefix: str) -> None:
        """Drop every name that begins with this prefix."""
        for name in [name for name in self._entries if name.startswith(prefix)]:
            del self._entries[name]

    def finish(self) -> None:
        """Raises CheckpointError, naming every tensor that was not taken or dropped."""
        left = sorted(f"{entry.disk_name} ({entry.path.name})" for entry in self._entries.values())
        if left:
            more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
            shown = ", ".join(left[:_SHOWN]) + more
            raise CheckpointError(f"{self._where}: tensors that this model does not use: {shown}")


def _files(checkpoint: Checkpoint) -> tuple[list[Path], str | None]:
    """What is read, and what to say of an index that lies beside it and is not."""
    held = {path.name for path in checkpoint.path.iterdir() if path.is_file()}
    first = first_file(checkpoint, held, str(checkpoint.path))
    if first.endswith(".index.json"):
        return [checkpoint.path / name for name in shards(checkpoint, first, held, str(checkpoint.path))], None
    index = f"{first}.index.json"
    if index not in held:
        return [checkpoint.path / first], None
    passed_over = f"{first} is read and {index} beside it is passed over, as by transformers: remove the stale one"
    return [checkpoint.path / first], passed_over


def _label(entry: _Entry | _Pickled) -> str:
    return f"{entry.path.name}: tensor {entry.disk_name!r}"


def _read_pickle(path: Path) -> list[_Pickled]:
    """The mapped tensors of a file that torch.save wrote. Raises CheckpointError for anything but plain tensors."""
    names = {dtype: name for name, dtype in _DTYPES.items()}
    try:
        content = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError, LookupError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path.name}: damaged, or not a zip file of plain tensors ({type(error).__name__})"
        ) from None
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise CheckpointError(f"{path.name}: not a table of tensors by name")
    return [
        _Pickled(path, str(name), names.get(tensor.dtype, str(tensor.dtype)), tuple(tensor.shape), tensor)
        for name, tensor in content.items()
    ]


def _read_header(path: Path) -> list[_Entry]:
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


def _entry(path: Path, name: str, fields: dict[str, Any], base: int, size: int) -> _Entry:
    begin, end = fields["data_offsets"]
    shape = tuple(int(side) for side in fields["shape"])
    dtype = str(fields["dtype"])
    itemsize = _DTYPES[dtype].itemsize if dtype in _DTYPES else None
    if not 0 <= begin <= end or min(shape, default=0) < 0:
        raise ValueError(f"tensor {name!r} has offsets {begin}..{end} and shape {list(shape)}")
    if itemsize is not None and end - begin != itemsize * math.prod(shape):
        raise ValueError(f"tensor {name!r} has {end - begin} bytes for {dtype} {list(shape)}")
    if base + end > size:
        raise CheckpointError(f"{path.name}: cut short: tensor {name!r} ends at byte {base + end}, the file at {size}")
    return _Entry(path, name, dtype, shape, base + begin, end - begin)


def _internal_name(name: str, renames: Mapping[str, str]) -> str:
    for prefix, new in renames.items():
        if name.startswith(prefix):
            return new + name[len(prefix) :]
    return name


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
