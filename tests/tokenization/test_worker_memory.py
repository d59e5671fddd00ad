"""What a worker may have, what it gives back when no job runs, and what it says of the rest."""

import resource
from collections.abc import Callable, Iterable

import av
import pytest

from configs.checkpoint import CheckpointError
from configs.serve import MIB
from configs.worker import WorkerConfig
from tokenization import worker_memory
from tokenization.chat.errors import ChatError, in_field
from tokenization.worker_memory import (
    TOO_LARGE,
    WorkerMemory,
    bound_memory,
    raise_if_memory,
    resident_bytes,
    within_bound,
)


@pytest.fixture
def given_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each time that memory went back to the system."""
    calls: list[int] = []
    monkeypatch.setattr(worker_memory, "trim_heap", lambda: calls.append(1))
    return calls


Makes = Callable[..., WorkerMemory]


@pytest.fixture
def of(monkeypatch: pytest.MonkeyPatch) -> Makes:
    """A worker that finds so many MiB, first when it is ready and then whenever it looks."""

    def make(limits: WorkerConfig, *resident: int, mapped: Iterable[int] = ()) -> WorkerMemory:
        looks, looks_mapped = iter(resident), iter(mapped)
        monkeypatch.setattr(worker_memory, "resident_bytes", lambda: next(looks) * MIB)
        monkeypatch.setattr(worker_memory, "private_bytes", lambda: next(looks_mapped, 0) * MIB)
        return WorkerMemory(limits)

    return make


def test_what_is_within_the_bound_is_kept(given_back: list[int], of: Makes) -> None:
    memory = of(WorkerConfig(keep_bytes=64 * MIB), 50, 50, 114)
    assert (memory.trim(), memory.trim()) == (0, 0) and not given_back


def test_what_is_above_goes_back_and_what_stays_is_told(given_back: list[int], of: Makes) -> None:
    """Half of the bound stays free for buffers that are used again."""
    memory = of(WorkerConfig(keep_bytes=64 * MIB), 50, 115, 82, 115, 83)
    assert memory.trim() == 0 and len(given_back) == 1
    assert memory.trim() == 33 * MIB and len(given_back) == 2


def test_without_a_job_for_a_while_nothing_is_kept_for_the_next(given_back: list[int], of: Makes) -> None:
    memory = of(WorkerConfig(keep_bytes=64 * MIB), 50, 51, 83)
    assert memory.trim(idle=True) == 0 and len(given_back) == 1
    assert memory.trim(idle=True) == 33 * MIB and len(given_back) == 2


def test_most_of_the_whole_bound_is_left_to_the_next_job(given_back: list[int], of: Makes) -> None:
    memory = of(WorkerConfig(memory_bytes=512 * MIB, keep_bytes=400 * MIB), 0, 128, 129, 0)
    assert memory.trim() == 0 and not given_back
    assert memory.trim() == 0 and given_back


def test_what_stays_mapped_is_told_too(given_back: list[int], of: Makes) -> None:
    """It counts for the bound, though no page of it lies in RAM: a decoder's threads find no room for their stacks."""
    memory = of(WorkerConfig(memory_bytes=512 * MIB), 0, 0, 0, 0, 0, 0, mapped=(100, 356, 357, 356, 357, 357))
    assert memory.trim() == 0 and not given_back
    assert memory.trim() == 0 and len(given_back) == 1
    assert memory.trim() == 257 * MIB and len(given_back) == 2


def test_an_error_of_a_library_close_to_the_bound_is_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that cannot be started is EAGAIN to FFmpeg, and what a decoder makes of that is anything."""
    error, infinite = av.FFmpegError(11, "Resource temporarily unavailable"), resource.RLIM_INFINITY
    monkeypatch.setattr(resource, "getrlimit", lambda which: (512 * MIB, infinite))
    monkeypatch.setattr(worker_memory, "private_bytes", lambda: 384 * MIB)
    raise_if_memory(error)
    refused = av.MemoryError(12, "Cannot allocate memory")
    raise_if_memory(refused, claims=True)
    with pytest.raises(MemoryError):
        raise_if_memory(refused)
    monkeypatch.setattr(worker_memory, "private_bytes", lambda: 385 * MIB)
    with pytest.raises(MemoryError):
        raise_if_memory(error, claims=True)
    monkeypatch.setattr(resource, "getrlimit", lambda which: (infinite, infinite))
    raise_if_memory(error)


def test_freed_blocks_go_back_to_the_system() -> None:
    """Blocks of 64 KiB lie in the heap, where a block that is still used keeps those below it."""
    worker_memory.trim_heap()  # what earlier tests of this process left would be used again
    before = resident_bytes()
    blocks = [bytearray(b"x" * 65536) for _ in range(1600)]
    held = resident_bytes() - before
    assert held > 90 * MIB
    del blocks[:-1]
    worker_memory.trim_heap()
    assert resident_bytes() - before < 30 * MIB


def test_a_job_that_meets_the_bound_is_refused_by_its_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (512 * MIB, resource.RLIM_INFINITY))
    for error in (MemoryError(), av.MemoryError(12, "Cannot allocate memory")):
        refused = pytest.raises(ChatError, match="more memory than 512 MiB")
        with refused as caught, in_field("inputs[0].image"), within_bound():
            raise error
        assert (caught.value.param, caught.value.code) == ("inputs[0].image", TOO_LARGE)


def test_a_bound_below_what_a_worker_has_keeps_it_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(resource, "setrlimit")
    with pytest.raises(CheckpointError, match="--worker-memory-mib is 1: a worker of this model takes"):
        bound_memory(MIB)


def test_a_hard_limit_of_the_system_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: asked.append(limits))
    infinite = resource.RLIM_INFINITY
    for hard in (infinite, 1 << 40, 1 << 50):
        monkeypatch.setattr(resource, "getrlimit", lambda which, hard=hard: (infinite, hard))
        bound_memory(1 << 45)
    assert asked == [(1 << 45, infinite), (1 << 40, 1 << 40), (1 << 45, 1 << 50)]
