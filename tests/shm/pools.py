"""What tests of the pool share: sizes, and looks at a root from outside."""

import os
from pathlib import Path

import numpy as np

from shm import Pool, read_segment, write_segment
from shm.segment import file_bytes

KIB = 1024
UNIT = file_bytes(60 * KIB)  # the file of a lease of 60 KiB
SIZE = 60 * KIB


def on_disk(root: Path) -> int:
    """Bytes of all segments, idle and lent."""
    return sum(path.stat().st_size for path in root.iterdir() if path.suffix in ("", ".idle"))


def files(root: Path, suffix: str) -> list[str]:
    return sorted(path.name for path in root.iterdir() if path.suffix == suffix)


def roundtrip(root: Path, name: str, nbytes: int) -> None:
    data = np.frombuffer(os.urandom(nbytes), np.uint8)
    write_segment(root, name, data)
    np.testing.assert_array_equal(read_segment(root, name, (nbytes,), np.uint8), data)


def finish(pool: Pool, request_id: str) -> None:
    pool.retire(request_id)
    pool.settle(request_id)
