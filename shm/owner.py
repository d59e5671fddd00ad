"""The owner of segments: a locked file that lists them.

The owner and children that inherit the descriptor hold the lock; a sweeper frees what the file lists when nobody does.
A name is listed from before its file exists until the file is gone, so that a crash leaves at most idle names.
"""

import os
import secrets
from pathlib import Path

from .ledger import path_files
from .root import OwnerError, check_root, leave, make_root
from .segment import MOST_LISTED, SegmentFull, is_full, leads_to
from .sweep import LISTED, free_all, try_lock

_SLOT = 17  # bytes of one line: a name, blanks, a line end. Fixed, so that the line of a dead name is written again


class Owner:
    """A live owner: this process, and every child that inherited `fileno()`. Not thread-safe."""

    def __init__(self, root: Path, name: str, fd: int) -> None:
        self.root = root
        self.name = name
        self._fd = fd
        self._slot_of: dict[str, int] = {}
        self._free: list[int] = []

    @classmethod
    def claim(cls, root: Path) -> "Owner":
        """Raises OwnerError unless `root`, created if missing, is a writable directory of this user with mode 0700."""
        while True:
            name = secrets.token_hex(8)
            path = root / f"{name}.owner"
            make_root(root)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # somebody's last owner left, and took the empty directory along
            except OSError as error:
                raise OwnerError(f"no file can be created in {root}: {os.strerror(error.errno or 0)}") from None
            # Between open and flock a sweeper may have taken this file for a dead owner's. Then it holds the lock,
            # or has already removed the file: this name is lost, and nothing else, for it lists nothing yet.
            if try_lock(fd) and leads_to(path, fd):
                return cls(root, name, fd)
            path.unlink(missing_ok=True)
            os.close(fd)

    def fileno(self) -> int:
        return self._fd

    def lost(self) -> bool:
        """Whether somebody removed the owner file, or the directory. Raises OwnerError for one that is not private."""
        check_root(self.root)
        return not leads_to(self.root / f"{self.name}.owner", self._fd)

    def renew(self) -> None:
        """Own anew, under another name, after a loss: what was listed is given up. Raises OwnerError.

        The descriptor keeps its number. Children that inherited it before hold the lock of what is gone.
        """
        other = Owner.claim(self.root)
        os.dup2(other._fd, self._fd, inheritable=False)
        os.close(other._fd)
        self.name = other.name
        self._slot_of, self._free = {}, []

    def record(self, name: str) -> None:
        """List `name` before its file exists. Raises SegmentFull, and OwnerError when the owner file was removed."""
        if not LISTED.fullmatch(name):
            raise ValueError("not a name that a sweep would free")
        if self.lost():
            # Nobody could find the segment after a crash, and others may take this owner for dead.
            raise OwnerError("the owner file was removed by somebody: restart this process")
        slot = self._free.pop() if self._free else len(self._slot_of)
        if (slot + 1) * _SLOT > MOST_LISTED:  # a sweep would not read it
            raise SegmentFull(f"an owner lists at most {MOST_LISTED // _SLOT} segments")
        try:
            done = os.pwrite(self._fd, f"{name:<{_SLOT - 1}}\n".encode("ascii"), slot * _SLOT)
        except OSError as error:
            done = 0
            if not is_full(error):
                raise
        if done < _SLOT:
            self._free.append(slot)
            raise SegmentFull("shared memory is full: no room to record a segment")
        self._slot_of[name] = slot

    def forget(self, name: str) -> None:
        """Free the line of `name`, after its file is gone."""
        self._free.append(self._slot_of.pop(name))

    def close(self) -> None:
        """Remove everything of this owner, the lock file last, and the directory when it is empty. Idempotent."""
        if self._fd >= 0:
            free_all(self.root, self.name, self._fd, path_files(self.root)[self.name])
            os.close(self._fd)
            self._fd = -1
            leave(self.root)
