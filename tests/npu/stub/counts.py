"""What the stub of the driver counted in this process: launches by name, waits, copies by kind."""

import ctypes
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from tests.npu.stub import HOME


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Fills the yielded counter when the block ends with what was called inside it, by name; nothing that is 0."""
    found: Counter[str] = Counter()
    before = _counts()
    try:
        yield found
    finally:
        found.update(_counts() - before)


def launches(found: Counter[str]) -> Counter[str]:
    """Those of a counter that are kernels."""
    return Counter({name: n for name, n in found.items() if name.startswith("aclnn")})


def launched() -> int:
    """Kernels launched so far in this process; cheap."""
    return int(ctypes.c_long.in_dll(stub(), "stub_launches").value)


@cache
def stub() -> ctypes.CDLL:
    """The library, as it was loaded when Python started."""
    found = ctypes.CDLL(str(HOME / "cann" / "libstub_cann.so"))
    found.stub_counter_name.restype = ctypes.c_char_p
    found.stub_counter.restype = ctypes.c_long
    return found


def _counts() -> Counter[str]:
    lib = stub()
    return Counter({lib.stub_counter_name(i).decode(): lib.stub_counter(i) for i in range(lib.stub_counters())})
