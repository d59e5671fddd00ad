"""The memory of a worker process: its bound, and what goes back to the system after a job."""

import ctypes
import gc
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from configs.checkpoint import CheckpointError
from configs.worker import WorkerConfig
from tokenization.chat.errors import ChatError

PAGE = resource.getpagesize()
NEAR = 128 << 20  # bytes below the bound where the stacks of a decoder's threads, or a packet, are refused
TOO_LARGE = "worker_memory"  # the code of a request that met the bound


def bound_memory(nbytes: int) -> None:
    """Refuse this process more private memory than this; what it has already counts. A lower hard limit stays.

    Raises CheckpointError where it has more already.

    RLIMIT_DATA counts what is private and may be written (setrlimit(2), Linux 4.7 and later): heap, buffers, stacks of
    threads. RLIMIT_AS would count the code of libraries, reserved addresses and shared memory, too.
    """
    has = private_bytes()
    if has > nbytes:
        raise CheckpointError(
            f"--worker-memory-mib is {nbytes >> 20}: a worker of this model takes {has >> 20} MiB before its first job"
        )
    _limit(nbytes)


def bound_growth(nbytes: int) -> None:
    """The same of this forked process, which may take so much more than it has now; it leaves no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _limit(private_bytes() + nbytes)


def _limit(nbytes: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard), hard))


def private_bytes() -> int:
    """What RLIMIT_DATA counts of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * PAGE


def raise_if_memory(error: Exception, *, claims: bool = False) -> None:
    """Raises MemoryError where `error` of a library is a lack of memory: it says so, or comes so close to the bound.

    claims: a damaged header may ask for any memory, so that to be refused it says nothing by itself.
    """
    bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
    near = bound != resource.RLIM_INFINITY and private_bytes() > bound - NEAR
    if near or (isinstance(error, MemoryError) and not claims):
        raise MemoryError from error


@contextmanager
def within_bound() -> Iterator[None]:
    """Memory that is refused becomes a ChatError: the same request would meet the same bound."""
    try:
        yield
    except MemoryError:
        bound, _ = resource.getrlimit(resource.RLIMIT_DATA)
        most = "there is" if bound == resource.RLIM_INFINITY else f"{bound >> 20} MiB, this server's bound"
        raise ChatError(f"preparing this request takes more memory than {most}", code=TOO_LARGE) from None


class WorkerMemory:
    """The private memory of a process since it became ready, and how much of it jobs left behind."""

    def __init__(self, limits: WorkerConfig) -> None:
        # Memory that one thread has freed and keeps is no use to another: most of the bound must stay free.
        self._keep = min(limits.keep_bytes, limits.memory_bytes // 4)
        # Freed blocks stay mapped below one that lives. The next job's buffers go there, and no thread's stack.
        self._most_mapped = limits.memory_bytes // 2
        self._first, self._first_mapped = resident_bytes(), private_bytes()

    def stays(self) -> None:
        """What the process has now it needs from now on: no job left it behind."""
        trim_heap()
        self._first, self._first_mapped = resident_bytes(), private_bytes()

    def trim(self, *, idle: bool = False) -> int:
        """To be called when no job runs. What is kept above a bound, or when `idle` at all, goes back to the system.

        Returns the bytes that stay all the same (fragmentation, a leak), where they are more than half of what may be
        resident, since the other half is for buffers of the next job, or more than may be mapped; else 0.
        """
        if not idle:
            kept, mapped = self._kept()
            if kept <= self._keep and mapped <= self._most_mapped:
                return 0
        trim_heap()
        kept, mapped = self._kept()
        if mapped > self._most_mapped:
            return mapped
        return kept if kept > self._keep // 2 else 0

    def _kept(self) -> tuple[int, int]:
        """(resident, mapped) bytes."""
        return resident_bytes() - self._first, private_bytes() - self._first_mapped


def resident_bytes() -> int:
    """Private memory of this process that lies in RAM: what is resident and no file's."""
    fields = Path("/proc/self/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * PAGE


def trim_heap() -> None:
    """Collect garbage, and return the pages of all freed blocks to the system."""
    gc.collect()
    return_pages()


def return_pages() -> None:
    """Return the pages of all freed blocks to the system, where the C library can: glibc, on any processor.

    Without the interpreter's lock: 5 to 12 ms for 0.4 GiB.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; another C library has no such call
    if trim is not None:
        trim(ctypes.c_size_t(0))
