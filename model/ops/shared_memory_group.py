"""Sums and gathers of processes on one host's CPU, through a file in memory: no socket, and so no port.

Ranks inherit the file, which has no name. Each rank copies its tensor into a slot of its own and posts a semaphore of
each other rank; once all have posted to it, it reads their slots. There are two sets of slots, used in
turn: the barrier of the call in between shows that all have read a slot before it is written again.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
import time
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

SLOT_BYTES = 2 << 20  # of each rank, in each of two sets; what is larger comes in pieces
_SETS = 2
_SEMAPHORE_BYTES = 64  # a sem_t is smaller; one a line of the cache
_HEAD_BYTES = 64  # its first byte says whether the semaphores are made
_SPINS = 100  # looks at a semaphore before this process sleeps until it is posted: some 30 microseconds
_LOOK_SECONDS = 1.0  # between looks whether the others are still there
_PATIENCE_SECONDS = 600.0  # of one call: a rank that hangs is found by its pulse long before
_LOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux: type, whence, start, length, pid

_libc: Any = ctypes.CDLL(None, use_errno=True)
_quick: Any = ctypes.PyDLL(None, use_errno=True)  # of calls that never wait: no other thread runs meanwhile


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class SharedMemoryGroup:
    """One rank of `n`. All make the same calls in the same order."""

    def __init__(self, rank: int, n: int, meeting: Path) -> None:
        """meeting: a file that is empty, or that the others have begun. Returns once all are there.

        Raises RuntimeError where they do not come.
        """
        self.rank, self.n = rank, n
        self._fd = os.open(meeting, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        weakref.finalize(self, os.close, self._fd)  # which releases its lock
        first_slot = _HEAD_BYTES + n * n * _SEMAPHORE_BYTES
        first_slot += -first_slot % mmap.PAGESIZE
        memory = self._mapped(first_slot + _SETS * n * SLOT_BYTES)
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=first_slot)
        self._sets = tuple(slots.view(_SETS, n, SLOT_BYTES).unbind(0))
        self._turn = 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + _HEAD_BYTES
        others = [other for other in range(n) if other != rank]
        self._posts = [address + (rank * n + other) * _SEMAPHORE_BYTES for other in others]
        self._waits = [(other, address + (other * n + rank) * _SEMAPHORE_BYTES) for other in others]
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, rank, 1, 0))
        self._all_came = False
        self._barrier()
        self._all_came = True

    def all_reduce(self, x: Tensor) -> None:
        """The sum over all ranks into x, contiguous: bit for bit the same on each. Raises RuntimeError where one left.

        Ranks are added in their order; of two, either order gives the same.
        """
        flat = x.view(-1)
        for part in flat.split(SLOT_BYTES // x.element_size()):
            slots = self._exchange(part)
            if self.n == 2:
                part.add_(slots[1 - self.rank])
                continue
            torch.add(slots[0], slots[1], out=part)
            for slot in slots[2:]:
                part.add_(slot)

    def all_gather(self, x: Tensor) -> Tensor:
        """x, contiguous, of each rank -> [n, *x.shape]. Raises RuntimeError where one left."""
        found = x.new_empty((self.n, x.numel()))
        flat = x.view(-1)
        pieces = SLOT_BYTES // x.element_size()
        for mine, of_all in zip(flat.split(pieces), found.split(pieces, 1), strict=True):
            for slot, piece in zip(self._exchange(mine), of_all, strict=True):
                piece.copy_(slot)
        return found.view(self.n, *x.shape)

    def _exchange(self, mine: Tensor) -> list[Tensor]:
        """The slots of all ranks, valid until the call after the next. mine: [k], at most SLOT_BYTES."""
        slots = self._sets[self._turn]
        self._turn ^= 1
        nbytes = mine.numel() * mine.element_size()
        found = [slot[:nbytes].view(mine.dtype) for slot in slots]
        found[self.rank].copy_(mine)
        self._barrier()
        return found

    def _barrier(self) -> None:
        """Returns once all ranks have called it; what each wrote before is visible to all."""
        for semaphore in self._posts:
            _quick.sem_post(ctypes.c_void_p(semaphore))
        for other, semaphore in self._waits:
            self._wait(other, ctypes.c_void_p(semaphore))

    def _wait(self, other: int, semaphore: ctypes.c_void_p) -> None:
        for _ in range(_SPINS):
            if _quick.sem_trywait(semaphore) == 0:
                return
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            alive = not self._all_came or self._is_alive(other)
            at = time.time() + _LOOK_SECONDS
            if _libc.sem_timedwait(semaphore, ctypes.byref(_Time(int(at), int(at % 1 * 1e9)))) == 0:
                return
            if ctypes.get_errno() not in (errno.ETIMEDOUT, errno.EINTR):
                raise RuntimeError(f"rank {other} cannot be waited for: {os.strerror(ctypes.get_errno())}")
            if not alive:  # nor did it post before it left
                raise RuntimeError(f"rank {other} is gone")
        raise RuntimeError(f"rank {other} did not come within {_PATIENCE_SECONDS:.0f} s")

    def _is_alive(self, other: int) -> bool:
        asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, other, 1, 0)
        held = _LOCK.unpack(fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, asked))[0]
        return bool(held != fcntl.F_UNLCK)

    def _mapped(self, nbytes: int) -> mmap.mmap:
        """The memory, with all semaphores at 0; whichever rank is first makes them."""
        fcntl.flock(self._fd, fcntl.LOCK_EX)
        try:
            if os.fstat(self._fd).st_size < nbytes:
                os.ftruncate(self._fd, nbytes)
            memory = mmap.mmap(self._fd, nbytes)
            if memory[0] == 0:
                address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + _HEAD_BYTES
                for i in range(self.n * self.n):
                    if _libc.sem_init(ctypes.c_void_p(address + i * _SEMAPHORE_BYTES), 1, 0) != 0:
                        raise RuntimeError(f"no semaphore: {os.strerror(ctypes.get_errno())}")
                memory[0] = 1
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        return memory
