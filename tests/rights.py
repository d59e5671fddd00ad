"""Files as a user sees them whose rights their modes decide: root passes over these, and tests may run as root."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_VERSION_3 = 0x20080522  # of capget(2) and capset(2), <linux/capability.h>
_PASSED_OVER = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@contextmanager
def forbidden(path: Path) -> Iterator[None]:
    """Nobody may read what lies at `path`, nor what lies in it; this thread has no more rights than any other user."""
    mode = path.stat().st_mode
    path.chmod(0)
    libc, found = ctypes.CDLL(None, use_errno=True), ctypes.create_string_buffer(24)
    header = ctypes.create_string_buffer(struct.pack("Ii", _VERSION_3, 0), 8)
    _check(libc.capget(header, found))
    effective, *others = struct.unpack("6I", found.raw)
    _check(libc.capset(header, struct.pack("6I", effective & ~_PASSED_OVER, *others)))
    try:
        yield
    finally:
        _check(libc.capset(header, found))
        path.chmod(mode)


def _check(answer: int) -> None:
    if answer:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
