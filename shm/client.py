"""The published calls for programs without a server: create, read and release a segment."""

import atexit
import contextlib
import functools
import mmap
import operator
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, SupportsIndex

import numpy.typing as npt

from .int64_words import decode_shape_from_int64, decode_shm_name_from_int64
from .ledger import Ledger
from .owner import Owner
from .root import default_root
from .segment import HEADER, create_file, file_bytes, fresh_name, read_segment, stamp
from .sweep import sweep_empty

if TYPE_CHECKING:
    import torch


class Segment:
    """A new segment, mapped into this process. `name` leads to it: pass it on by encode_shm_name_to_int64 only."""

    def __init__(self, name: str, size: int, mapping: mmap.mmap) -> None:
        self.name = name
        self.size = size  # bytes of data
        self._view: memoryview | None = memoryview(mapping)[HEADER : HEADER + size]

    @property
    def buf(self) -> memoryview:
        """The data: `size` writable bytes, page-aligned. Raises ValueError after close()."""
        if self._view is None:
            raise ValueError("the segment is closed")
        return self._view

    def close(self) -> None:
        """Unmap when no array uses the memory any more. The segment itself stays. Idempotent."""
        self._view = None


def create_shm(nbytes: SupportsIndex, shm_name_save_path: str | os.PathLike[str], root: Path | None = None) -> Segment:
    """A new segment of `nbytes` bytes; its name is appended to the file `shm_name_save_path` before it exists.

    It lives until that file is released, or until a sweep after this process has ended. Raises ValueError for `nbytes`
    below 1, SegmentFull when shared memory is full, SegmentError when the file holds anything but names, OwnerError
    when `root` (default_root() unless given) is not a 0700 directory of this user.
    """
    return _this_process(_absolute(root), os.getpid()).create(operator.index(nbytes), Path(shm_name_save_path))


def get_data_from_shm(
    name_word: SupportsIndex,
    shape_word: SupportsIndex,
    dtype: npt.DTypeLike,
    device: "torch.device | str",
    root: Path | None = None,
) -> "torch.Tensor":
    """The array that two words tell, as a tensor of `dtype` on `device`; a copy, the segment stays.

    Raises WordError for values that are no words, SegmentGone and SegmentMismatch as read_segment does.
    """
    import torch

    name, shape = decode_shm_name_from_int64(name_word), decode_shape_from_int64(shape_word)
    return torch.from_numpy(read_segment(_absolute(root), name, shape, dtype)).to(device)


def release_shared_memory(shm_name_save_path: str | os.PathLike[str], root: Path | None = None) -> int:
    """Free every segment that the path file names and remove the file; the number freed, 0 without such a file.

    Any process may call it. Raises SegmentError, and frees nothing, when the file holds anything but names.
    """
    where = _absolute(root)
    freed = 0
    ledger = Ledger.find(Path(shm_name_save_path))
    if ledger is not None:
        with ledger:
            for name in ledger.names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(where / name)
                    freed += 1
            ledger.remove()
    _this_process(where, os.getpid()).leave_if_done()
    sweep_empty(where)
    return freed


class _StandAlone:
    """This process as an owner under one root, from its first segment until none is left."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._owner: Owner | None = None
        self._names: list[str] = []
        self._next_look = 64

    def create(self, nbytes: int, path: Path) -> Segment:
        size = file_bytes(nbytes)
        with self._lock:
            try:
                if self._owner is None:
                    self._owner = Owner.claim(self._root)
                    atexit.register(self._at_exit)
                if len(self._names) >= self._next_look:
                    self._forget_released()
                    self._next_look = 64 + 2 * len(self._names)
                return self._create(self._owner, path, nbytes, size)
            finally:
                self._close_if_empty()

    def leave_if_done(self) -> None:
        with self._lock:
            self._forget_released()
            self._close_if_empty()

    def _create(self, owner: Owner, path: Path, nbytes: int, size: int) -> Segment:
        name = fresh_name(self._root)
        with Ledger.open(path) as ledger:
            try:
                ledger.append([name])
                owner.record(name)
                self._names.append(name)
                return _map_new(self._root / name, nbytes, size)
            except BaseException:  # an interrupt too: nothing may stay recorded that the caller never got
                ledger.undo()
                self._forget_released()
                raise

    def _forget_released(self) -> None:
        gone = {name for name in self._names if not os.path.lexists(self._root / name)}
        if self._owner is not None:
            for name in gone:
                self._owner.forget(name)
        self._names = [name for name in self._names if name not in gone]

    def _close_if_empty(self) -> None:
        if self._owner is not None and not self._names:
            self._owner.close()
            self._owner = None
            atexit.unregister(self._at_exit)

    def _at_exit(self) -> None:
        if os.getpid() == self._pid:  # a forked child inherits this handler, but not the segments
            self.leave_if_done()


def _map_new(path: Path, nbytes: int, size: int) -> Segment:
    fd = create_file(path, size)
    try:
        stamp(fd, path.name, nbytes)
        return Segment(path.name, nbytes, mmap.mmap(fd, size))
    except BaseException:  # an interrupt too: a segment that nobody was given must not stay
        os.unlink(path)
        raise
    finally:
        os.close(fd)


@functools.cache
def _this_process(root: Path, pid: int) -> _StandAlone:
    """One owner for each root and process: the segments of a parent stay the parent's after a fork."""
    return _StandAlone(root)


def _absolute(root: Path | None) -> Path:
    return default_root() if root is None else Path(os.path.abspath(root))
