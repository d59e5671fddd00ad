"""One segment: a file with a header page and data pages, of its own or a recycled one of a pool.

Errors never tell a segment's name, which gives access to it.
"""

import contextlib
import errno
import math
import mmap
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .int64_words import NAME

HEADER = 4096  # bytes in front of the data, which therefore stays page-aligned

_RECORD = struct.Struct("<8sIQ16s")  # magic, version, bytes of data, name of the lease
_MAGIC = b"PIXELFRY"
_VERSION = 1
_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Bytes that are read of a file that lists names: a quarter of a million of them. Ours never write more, so what lies
# behind is somebody else's, however much it is.
MOST_LISTED = 4 << 20


class SegmentError(Exception):
    """A segment could not be created, read or written. Concerns the request that named it, and nothing else."""


class SegmentGone(SegmentError):
    """The name leads nowhere, or led elsewhere when the copy was done."""


class SegmentMismatch(SegmentError):
    """The file is not the segment that was asked for: its record, size or kind differ."""


class SegmentFull(SegmentError):
    """The file system has no room for the bytes."""


def file_bytes(nbytes: int) -> int:
    """Bytes of the file that holds `nbytes` of data: header and whole pages. Raises ValueError below 1."""
    if nbytes < 1:
        raise ValueError(f"a segment holds at least one byte, not {nbytes}")
    return -(-(HEADER + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE


def fresh_name(root: Path) -> str:
    """A name that nobody can guess and that no file has."""
    while True:
        name = secrets.token_hex(6)[:11]
        if not os.path.lexists(root / name) and not os.path.lexists(root / f"{name}.idle"):
            return name


def is_full(error: OSError) -> bool:
    return error.errno in _FULL


def leads_to(path: Path, fd: int) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(fd))


def open_file(path: Path, mode: int) -> int:
    """Open an existing regular file, and nothing that lies in its place. Raises OSError, EINVAL for anything else."""
    # O_NONBLOCK: should somebody have put a pipe in this place, opening it must not wait for its other end.
    fd = os.open(path, mode | os.O_NONBLOCK | _SAFE)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "not a regular file")


def read_list(fd: int) -> str:
    """What a file that lists names holds, from its start and of no more than MOST_LISTED bytes."""
    return os.pread(fd, min(os.fstat(fd).st_size, MOST_LISTED), 0).decode("ascii", errors="replace")


def create_file(path: Path, size: int) -> int:
    """Open a new file of `size` reserved bytes. Raises SegmentFull or SegmentError, and leaves no new file then."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE, 0o600)
    except FileExistsError:
        raise SegmentError("the new segment's name is taken") from None
    except OSError as error:
        if is_full(error):
            raise SegmentFull("shared memory is full: no room for another file") from None
        raise SegmentError(f"a segment could not be created: {os.strerror(error.errno or 0)}") from None
    try:
        reserve(fd, size)
    except BaseException:  # an interrupt too: a file that nobody was given must not stay
        os.unlink(path)
        os.close(fd)
        raise
    return fd


def reserve(fd: int, size: int) -> None:
    """Reserve every page, so that no later write can meet SIGBUS or ENOSPC. Raises SegmentFull."""
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError as error:
        if is_full(error):
            raise SegmentFull(f"shared memory is full: {size} bytes could not be reserved") from None
        raise


def stamp(fd: int, name: str, nbytes: int) -> None:
    os.pwrite(fd, _RECORD.pack(_MAGIC, _VERSION, nbytes, name.encode("ascii")), 0)


@dataclass(eq=False, slots=True, kw_only=True)
class PoolFile:
    """A file under its idle name, or its lease's; `open` notices when somebody deleted, replaced or cut it."""

    root: Path
    idle: str
    name: str  # under which it lies now
    inode: tuple[int, int]
    size: int  # bytes of the file, header included
    used: int = 0  # bytes of it that the running lease may touch, header included
    since: float = 0.0  # monotonic seconds, of the running lease

    @classmethod
    def create(cls, root: Path, idle: str, size: int) -> "PoolFile":
        fd = create_file(root / idle, size)
        found = os.fstat(fd)
        os.close(fd)
        return cls(root=root, idle=idle, name=idle, inode=(found.st_dev, found.st_ino), size=size)

    def open(self) -> int | None:
        """A descriptor for reading and writing, or None when somebody has deleted, replaced or cut the file."""
        try:
            fd = open_file(self.root / self.name, os.O_RDWR)
        except OSError:
            return None
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == self.inode and found.st_size == self.size:
            return fd
        os.close(fd)
        return None

    def lend(self, fd: int, name: str, nbytes: int, used: int) -> None:
        stamp(fd, name, nbytes)
        os.rename(self.root / self.name, self.root / name)
        self.name, self.used, self.since = name, used, time.monotonic()

    def take_back(self) -> bool:
        """Rename to the idle name, so that the lease's leads nowhere; False when the file is gone."""
        fd = self.open()
        if fd is None:
            return False
        os.close(fd)
        try:
            os.rename(self.root / self.name, self.root / self.idle)
        except FileNotFoundError:
            return False
        self.name = self.idle
        return True

    def cut(self) -> int:
        """Shorten the file to what its lease uses; the bytes gained."""
        gained = self.size - self.used
        if gained:
            fd = self.open()
            if fd is not None:  # else somebody has deleted it, and its bytes are free already
                os.ftruncate(fd, self.used)
                os.close(fd)
            self.size = self.used
        return gained

    def remove(self) -> None:
        """Remove the file, or what lies in its place."""
        for name in (self.name, self.idle):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self.root / name)


def read_segment(
    root: Path,
    name: str,
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    empty: Callable[[tuple[int, ...], np.dtype], np.ndarray] = np.empty,
) -> np.ndarray:
    """A private copy of the array in segment `name`; `shape` times item size must be exactly the recorded bytes.

    empty: makes the contiguous array that is read into, once the record is known to be right.
    Raises SegmentGone when the name is taken away, even while reading, SegmentMismatch when record or size differ.
    """
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError("objects cannot lie in shared memory")
    fd = _open(root, name, os.O_RDONLY)
    try:
        # The record is compared before memory is allocated: a shape alone must not make anybody reserve terabytes.
        _check(fd, name, math.prod(shape) * kind.itemsize)
        array = empty(tuple(shape), kind)
        view = array.reshape(-1).view(np.uint8).data
        done = 0
        while done < len(view):
            got = os.preadv(fd, [view[done:]], HEADER + done)
            if got == 0:
                raise SegmentMismatch("the segment was cut while it was read")
            done += got
        if not leads_to(root / name, fd):
            raise SegmentGone("the segment was taken away while it was read")
        return array
    except OSError as error:
        raise SegmentError(f"the segment could not be read: {os.strerror(error.errno or 0)}") from None
    finally:
        os.close(fd)


def write_segment(root: Path, name: str, array: np.ndarray) -> None:
    """Copy `array`, of exactly the recorded bytes, into segment `name`. Raises as read_segment, and SegmentFull."""
    if array.dtype.hasobject:
        raise ValueError("objects cannot lie in shared memory")
    view = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    fd = _open(root, name, os.O_RDWR)
    try:
        _check(fd, name, array.nbytes)
        done = 0
        while done < len(view):
            done += os.pwritev(fd, [view[done:]], HEADER + done)
        if not leads_to(root / name, fd):
            raise SegmentGone("the segment was taken away while it was written")
    except OSError as error:
        if is_full(error):
            raise SegmentFull("shared memory is full") from None
        raise SegmentError(f"the segment could not be written: {os.strerror(error.errno or 0)}") from None
    finally:
        os.close(fd)


def _open(root: Path, name: str, mode: int) -> int:
    if not NAME.fullmatch(name):
        raise SegmentError("a segment name is 11 lowercase hex digits")
    try:
        # O_NONBLOCK: should somebody have put a pipe in this place, opening it must not wait for its other end.
        return os.open(root / name, mode | os.O_NONBLOCK | _SAFE)
    except FileNotFoundError:
        raise SegmentGone("the segment is gone") from None
    except OSError as error:
        raise SegmentError(f"the segment could not be opened: {os.strerror(error.errno or 0)}") from None


def _check(fd: int, name: str, nbytes: int) -> None:
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        raise SegmentMismatch("this is not a segment of this user")
    record = os.pread(fd, _RECORD.size, 0)
    if len(record) < _RECORD.size:
        raise SegmentMismatch("the segment has no record")
    magic, version, recorded, lease = _RECORD.unpack(record)
    if (magic, version) != (_MAGIC, _VERSION):
        raise SegmentMismatch("this is not a segment of this version")
    if lease.rstrip(b"\0") != name.encode("ascii"):
        raise SegmentMismatch("the segment belongs to another lease")
    if recorded != nbytes:
        raise SegmentMismatch(f"the segment holds {recorded} bytes, and {nbytes} were asked for")
    if found.st_size < HEADER + nbytes:
        raise SegmentMismatch("the segment is shorter than its record says")
