"""A server's bounded set of recycled segments, lent to requests by renaming: an old handle finds no file.

Files are kept because fresh pages are several times slower (docs/adr/0002-pread-not-mmap.md). Only the bytes of running
leases decide whether a request fits: files that are longer are cut where room is needed.
"""

import bisect
import functools
import logging
import operator
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from .ledger import Ledger, path_file, path_files
from .owner import Owner
from .root import OwnerError, left_in
from .segment import PoolFile, SegmentError, SegmentFull, file_bytes, fresh_name, is_full, reserve

_REQUEST = re.compile(r"[A-Za-z0-9_-]{1,128}")
_Result = TypeVar("_Result")
_SIZE = operator.attrgetter("size")
_log = logging.getLogger(__name__)


class PoolFull(Exception):
    """The bytes do not fit now. `retry_after`: seconds after which a lease of recent length would have ended."""

    def __init__(self, retry_after: float, *, by_others: bool = False) -> None:  # by_others: files that are not ours
        super().__init__(f"shared memory is in use; try again in {retry_after:.0f} s")
        self.retry_after, self.by_others = retry_after, by_others


class NeverFits(Exception):
    """The bytes of one request exceed the whole pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStats:
    """A snapshot. Bytes are lengths of files: header and whole pages."""

    capacity: int
    leased_bytes: int  # in files that are lent, or taken back and not settled yet
    leases: int  # the number of those files
    idle_bytes: int
    segments: int
    total_bytes: int  # leased and idle; never above capacity
    path_files: int  # that lie on disk
    others_bytes: int = 0  # of the capacity that cannot be had now, because others fill the file system


@dataclass(slots=True)
class _Request:
    leased: dict[str, PoolFile] = field(default_factory=dict)
    retired: list[PoolFile] = field(default_factory=list)


class Pool:
    """Thread-safe. `capacity` bounds the bytes of all its files together, headers included."""

    def __init__(self, owner: Owner, capacity: int) -> None:
        self._owner = owner
        self.root = owner.root  # the directory of its files
        self.capacity = capacity  # bytes that all leases together may take
        self._lock = threading.Lock()
        self._idle: list[PoolFile] = []  # by size, the smallest first
        self._requests: dict[str, _Request] = {}
        self._total = 0
        self._used = 0
        self._held_seconds = 1.0

    def lease(self, request_id: str, nbytes: Sequence[int]) -> tuple[str, ...]:
        """New names, one for each of `nbytes`, or none. Raises NeverFits, PoolFull, OwnerError, ValueError."""
        if not _REQUEST.fullmatch(request_id):
            raise ValueError("a request id is 1 to 128 letters, digits, - and _")
        needs = list(map(file_bytes, nbytes))
        if sum(needs) > self.capacity:
            raise NeverFits(f"{sum(needs)} bytes of shared memory are needed, and the pool holds {self.capacity}")
        if not needs:
            return ()
        with self._lock:
            self._keep_place()
            if self._used + sum(needs) > self.capacity:
                raise PoolFull(self._retry_after())
            try:
                return self._lease(request_id, nbytes)
            except (FileNotFoundError, SegmentError, OwnerError):
                if not self._keep_place():
                    raise
                return self._lease(request_id, nbytes)  # the place was lost a moment ago

    def keep_place(self) -> None:
        """See that directory and owner file are there; begin anew where somebody removed them. Raises OwnerError."""
        with self._lock:
            self._keep_place()

    def give_back(self, request_id: str, names: Sequence[str]) -> None:
        """End those leases of `names` that the request still has: the reader has its copy, the files are reusable."""
        with self._lock:
            request = self._requests.get(request_id)
            for name in names:
                file = request.leased.pop(name, None) if request else None
                if file is not None and self._take_back(file):
                    self._put_idle(file)

    def retire(self, request_id: str) -> None:
        """End the request: its names and path file are gone, its files wait for settle(). Idempotent."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return
            for file in request.leased.values():
                if self._take_back(file):
                    request.retired.append(file)
            request.leased.clear()
            path_file(self.root, self._owner.name, request_id).unlink(missing_ok=True)
            if not request.retired:
                del self._requests[request_id]

    def settle(self, request_id: str) -> None:
        """Make retired files reusable: no writer or reader has them open any more. Idempotent."""
        with self._lock:
            request = self._requests.get(request_id)
            if request is None:
                return
            for file in request.retired:
                self._put_idle(file)
            request.retired.clear()
            if not request.leased and not path_file(self.root, self._owner.name, request_id).exists():
                del self._requests[request_id]

    def stats(self) -> PoolStats:
        with self._lock:
            out = self._out()
            idle = sum(file.size for file in self._idle)
            return PoolStats(
                capacity=self.capacity,
                leased_bytes=self._total - idle,
                leases=len(out),
                idle_bytes=idle,
                segments=len(self._idle) + len(out),
                total_bytes=self._total,
                path_files=len(path_files(self.root)[self._owner.name]),
                others_bytes=max(0, self.capacity - self._total - left_in(self.root)),
            )

    # ---- all below run under the lock

    def _keep_place(self) -> bool:
        """True: all that was there is lost, and the pool is empty."""
        if not self._owner.lost():
            return False
        before = self._owner.name
        self._owner.renew()
        files = [*self._idle, *self._out()]
        for file in files:  # some may be left
            file.remove()
        for path in path_files(self.root)[before]:
            path.unlink(missing_ok=True)
        self._idle.clear()
        self._requests.clear()
        self._total = self._used = 0
        _log.error("the shared memory was removed under this server: %d segments are lost, it begins anew", len(files))
        return True

    def _lease(self, request_id: str, nbytes: Sequence[int]) -> tuple[str, ...]:
        names = tuple(fresh_name(self.root) for _ in nbytes)
        path = path_file(self.root, self._owner.name, request_id)
        ledger = self._with_room(functools.partial(Ledger.open, path, record=names))
        request = self._requests.setdefault(request_id, _Request())
        try:
            # The largest first: it takes the largest idle file, and a small item does not sit in that one.
            for n, name in sorted(zip(nbytes, names, strict=True), reverse=True):
                request.leased[name] = self._issue(name, n)
        except BaseException:  # an interrupt too: all or none are lent, or the bound would count them for good
            for name in names:
                file = request.leased.pop(name, None)
                if file is not None and self._take_back(file):
                    self._put_idle(file)
            ledger.undo()
            if not request.leased and not request.retired and not ledger.names:
                del self._requests[request_id]
            raise
        finally:
            ledger.close()
        return names

    def _issue(self, name: str, nbytes: int) -> PoolFile:
        need = file_bytes(nbytes)
        while True:
            if self._idle:
                # The smallest that is large enough, or the largest one, which grows: to grow one, instead of adding
                # one, keeps the number of files at the most that were ever lent at once.
                file = self._idle.pop(min(bisect.bisect_left(self._idle, need, key=_SIZE), len(self._idle) - 1))
            else:
                file = self._create(need)
            fd = file.open()
            if fd is None:
                self._drop(file)
                continue
            try:
                if file.size < need:
                    self._make_room(need - file.size)
                    self._with_room(functools.partial(reserve, fd, need))
                    self._total += need - file.size
                    file.size = need
                file.lend(fd, name, nbytes, need)
            except BaseException:  # an interrupt too: a file that is neither idle nor lent would be lost to the pool
                bisect.insort(self._idle, file, key=_SIZE)
                raise
            finally:
                os.close(fd)
            self._used += need
            return file

    def _create(self, size: int) -> PoolFile:
        self._make_room(size)
        idle = f"{fresh_name(self.root)}.idle"
        self._with_room(lambda: self._owner.record(idle))
        try:
            file = self._with_room(lambda: PoolFile.create(self.root, idle, size))
        except BaseException:  # an interrupt too: a name without a file must not keep its place in the list
            self._owner.forget(idle)
            raise
        self._total += size
        return file

    def _make_room(self, more: int) -> None:
        """Evict idle files, small ones first, then cut leased ones; lease() has made sure that this is enough."""
        while self._total + more > self.capacity and self._idle:
            self._drop(self._idle.pop(0))
        if self._total + more > self.capacity:
            self._cut_leased()

    def _with_room(self, step: Callable[[], _Result]) -> _Result:
        """Run `step`; while the file system has no room, evict or cut files and run it again. Raises PoolFull."""
        while True:
            try:
                return step()
            except (OSError, SegmentFull) as error:
                if isinstance(error, OSError) and not is_full(error):
                    raise
            if self._idle:
                self._drop(self._idle.pop())
            elif not self._cut_leased():
                raise PoolFull(self._retry_after(), by_others=True)

    def _drop(self, file: PoolFile) -> None:
        file.remove()
        self._owner.forget(file.idle)
        self._total -= file.size

    def _cut_leased(self) -> int:
        gained = sum(file.cut() for file in self._out())
        self._total -= gained
        return gained

    def _take_back(self, file: PoolFile) -> bool:
        """End a lease; False, and the file is dropped, when it is no longer what was lent."""
        self._held_seconds += 0.2 * (time.monotonic() - file.since - self._held_seconds)
        if file.take_back():
            return True
        self._used -= file.used
        self._drop(file)
        return False

    def _put_idle(self, file: PoolFile) -> None:
        self._used -= file.used
        file.used = 0
        bisect.insort(self._idle, file, key=_SIZE)

    def _out(self) -> list[PoolFile]:
        return [file for one in self._requests.values() for file in (*one.leased.values(), *one.retired)]

    def _retry_after(self) -> float:
        return max(1.0, self._held_seconds)
