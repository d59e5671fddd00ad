"""One recycled file of a pool and its two names."""

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from shm.segment import create_file, open_file, stamp


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
