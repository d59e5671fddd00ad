"""A path file: where it lies, and the names of segments in it, one a line, written before the segments exist."""

import fcntl
import os
import re
import stat
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .int64_words import NAME
from .root import listing
from .segment import MOST_LISTED, SegmentError, SegmentFull, leads_to, open_file, read_list

_TORN = re.compile(r"[0-9a-f]{0,10}")  # what a writer killed in mid-write leaves: that segment never came to be


def path_file(root: Path, owner: str, request_id: str) -> Path:
    return root / f"{owner}.{request_id}.paths"


def path_files(root: Path) -> defaultdict[str, list[Path]]:
    """By owner."""
    found: defaultdict[str, list[Path]] = defaultdict(list)
    for name in listing(root):
        if name.endswith(".paths"):
            found[name.partition(".")[0]].append(root / name)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """An open path file, locked against every other process that opens it as a Ledger."""

    names: tuple[str, ...]  # that it held when it was opened
    path: Path
    fd: int
    kept: int  # bytes to go back to when what is appended now is taken back
    line_end: str  # that the last one of the names lacks

    @classmethod
    def find(cls, path: Path) -> "Ledger | None":
        try:
            return cls.open(path, create=False)
        except FileNotFoundError:
            return None

    @classmethod
    def open(cls, path: Path, *, create: bool = True, record: Sequence[str] = ()) -> "Ledger":
        """Raises SegmentError, and leaves the file alone, when it is a pipe, too long, or holds other than names.

        record: names to append at once; raises as `append` does, and is not open then.
        """
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_CREAT if create else 0)
        while True:
            fd = os.open(path, flags, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                if leads_to(path, fd):  # else it was released while this waited for the lock: begin again
                    found = os.fstat(fd)
                    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_LISTED:
                        raise SegmentError(
                            f"this is not a path file: it is no regular file of at most {MOST_LISTED} bytes"
                        )
                    text = read_list(fd)
                    tail = text.rpartition("\n")[2]
                    kept = text.removesuffix(tail) if _TORN.fullmatch(tail) else text
                    names = tuple(kept.removesuffix("\n").split("\n")) if kept else ()
                    if not all(map(NAME.fullmatch, names)):
                        raise SegmentError("this is not a path file: it holds a line that is no segment name")
                    line_end = "\n" if kept and not kept.endswith("\n") else ""
                    os.ftruncate(fd, len(kept))
                    ledger = cls(names=names, path=path, fd=fd, kept=len(kept), line_end=line_end)
                    if record:
                        ledger.append(record)
                    return ledger
            except BaseException:  # an interrupt too: while the descriptor is open, here or in a fork, it is locked
                fcntl.flock(fd, fcntl.LOCK_UN)
                os.close(fd)
                raise
            os.close(fd)

    def append(self, names: Sequence[str]) -> None:
        """Record `names`. Raises OSError or SegmentFull without room; after an error the file is as it was."""
        text = (self.line_end + "\n".join([*names, ""])).encode("ascii")
        try:
            if os.pwrite(self.fd, text, self.kept) < len(text):
                raise SegmentFull("no room to record a segment")
        except BaseException:  # an interrupt too: half a record must not stay in the file
            self.undo()
            raise

    def undo(self) -> None:
        """Take back what was appended through this object; an empty file is removed."""
        os.ftruncate(self.fd, self.kept)
        if not self.kept:
            self.remove()

    def remove(self) -> None:
        if leads_to(self.path, self.fd):
            os.unlink(self.path)

    def close(self) -> None:
        """Give up the lock, also for a process that was forked meanwhile and inherited the descriptor."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def names_in(path: Path) -> tuple[str, ...]:
    """The names in a path file whose writer is dead; anything else is passed over."""
    try:
        fd = open_file(path, os.O_RDONLY)
    except OSError:
        return ()
    try:
        text = read_list(fd)
    finally:
        os.close(fd)
    return tuple(line for line in text.split("\n") if NAME.fullmatch(line))
