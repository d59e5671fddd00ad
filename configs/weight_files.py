"""Which files of a checkpoint hold its weights, for a directory and for a hub's list; and the table of one of them.

Nothing here needs torch: the doctor looks at weights, too.
"""

import json
import math
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from configs.checkpoint import Checkpoint, CheckpointError, refuse_pointer, shown

# The first that is there is read, as by transformers 5.23 (modeling_utils._get_resolved_checkpoint_files).
ORDER = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")

ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}  # of the dtypes that are read, as safetensors names them
_HEADER_LIMIT = 100_000_000  # bytes, as the safetensors format has it


@dataclass(frozen=True, slots=True)
class TableEntry:
    """One tensor of a safetensors file, by its header."""

    name: str
    dtype: str  # as safetensors names it
    shape: tuple[int, ...]
    offset: int  # in the file
    nbytes: int


def first_file(checkpoint: Checkpoint, held: Collection[str], where: str) -> str:
    """The weights themselves, or the index of their shards.

    held: the names of the files beside each other; where: for people, what holds them. Raises CheckpointError.
    """
    named = checkpoint.config.read(str, "transformers_weights", "")  # as transformers 5 reads it: before all others
    if named and (Path(named).name != named or named not in held):
        raise CheckpointError(f"config.json: transformers_weights is {shown(named)}, which is no file of {where}")
    first = named or next((name for name in ORDER if name in held), None)
    if first is None:
        raise CheckpointError(f"{where}: no weights here: it holds none of {', '.join(ORDER)}")
    return first


def shards(checkpoint: Checkpoint, index: str, held: Collection[str], where: str) -> list[str]:
    """The files that an index names, by name. Raises CheckpointError for a path and for one that is missing."""
    names = sorted({str(name) for name in checkpoint.file(index).read(dict, "weight_map").values()})
    for name in names:
        if Path(name).name != name:
            raise CheckpointError(f"{index}: {shown(name)} is not a file name")
        if name not in held:
            raise CheckpointError(f"{where}: {name[:200]} is missing; {index} names it")
    return names


def weight_files(checkpoint: Checkpoint) -> tuple[list[Path], str | None]:
    """What is read, and what to say of an index that lies beside it and is not. Raises CheckpointError."""
    try:
        held = {path.name for path in checkpoint.path.iterdir() if path.is_file()}
    except OSError as error:
        raise CheckpointError(f"{error.filename}: cannot be read: {error.strerror}") from None
    first = first_file(checkpoint, held, str(checkpoint.path))
    if first.endswith(".index.json"):
        return [checkpoint.path / name for name in shards(checkpoint, first, held, str(checkpoint.path))], None
    index = f"{first}.index.json"
    if index not in held:
        return [checkpoint.path / first], None
    passed_over = f"{first} is read and {index} beside it is passed over, as by transformers: remove the stale one"
    return [checkpoint.path / first], passed_over


def read_table(path: Path) -> list[TableEntry]:
    """The header of a safetensors file: 8 bytes of length, JSON, then the tensors' bytes, all of which must be there.

    Raises CheckpointError.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 8:
                raise CheckpointError(f"{path.name}: not a safetensors file: it has {size} bytes")
            begin = file.read(64)
            refuse_pointer(path.name, begin)
            length = int.from_bytes(begin[:8], "little")
            if length > min(_HEADER_LIMIT, size - 8):
                raise CheckpointError(f"{path.name}: not a safetensors file, or cut short inside its header")
            file.seek(8)
            content = file.read(length)
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        header = json.loads(content)
        header.pop("__metadata__", None)
        return [_entry(path, name, fields, 8 + length, size) for name, fields in header.items()]
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{path.name}: broken safetensors header: {error!r}") from None


def unreadable(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path.name}: cannot be read: {error.strerror}")


def _entry(path: Path, name: str, fields: dict[str, Any], base: int, size: int) -> TableEntry:
    begin, end = fields["data_offsets"]
    shape = tuple(int(side) for side in fields["shape"])
    dtype = str(fields["dtype"])
    itemsize = ITEM_BYTES.get(dtype)
    if not 0 <= begin <= end or min(shape, default=0) < 0:
        raise ValueError(f"tensor {name!r} has offsets {begin}..{end} and shape {list(shape)}")
    if itemsize is not None and end - begin != itemsize * math.prod(shape):
        raise ValueError(f"tensor {name!r} has {end - begin} bytes for {dtype} {list(shape)}")
    if base + end > size:
        raise CheckpointError(f"{path.name}: cut short: tensor {name!r} ends at byte {base + end}, the file at {size}")
    return TableEntry(name, dtype, shape, base + begin, end - begin)
