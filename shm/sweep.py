"""The sweep: frees what dead owners left, and nothing of live ones.

An owner's file is locked for as long as a process of its lives. A sweeper that gets the lock knows that the owner is
dead, and frees what the file and the owner's path files list.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .ledger import names_in, path_files
from .root import check_root, leave, listing
from .segment import leads_to, open_file, read_list

_OWNER = re.compile(r"([0-9a-f]{16})\.owner")
_WORD = re.compile(r"\S+")
LISTED = re.compile(r"[0-9a-f]{11}(?:\.idle)?")  # a word can tell the first form only: no word leads to an idle segment
AT_ONCE = 128  # dead owners that are locked at once: the directory is listed once for all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep, or a part of one, did and met."""

    owners: int = 0  # dead owners whose lock file was removed
    segments: int = 0
    bytes: int = 0  # lengths of those segments' files
    odd: tuple[str, ...] = ()  # entries named as owner files that are none: left alone

    def __add__(self, other: "SweepReport") -> "SweepReport":
        return SweepReport(
            owners=self.owners + other.owners, segments=self.segments + other.segments,
            bytes=self.bytes + other.bytes, odd=self.odd + other.odd,
        )  # fmt: skip


def sweep(root: Path) -> SweepReport:
    """Free everything of dead owners and nothing of live ones. Raises OwnerError for a `root` of another user or mode.

    Segments that no owner file lists stay: somebody removed that file, and its lock was the only proof of a death.
    """
    return sum(sweep_in_parts(root), SweepReport())


def sweep_in_parts(root: Path) -> Iterator[SweepReport]:
    """The same, AT_ONCE owners at a time, for who wants to stop in between."""
    if not root.exists():
        return
    check_root(root)
    yield from _parts(root)
    leave(root)


def sweep_if_last(root: Path, lock_fd: int, owner_name: str) -> None:
    """Give up this process's hold on the owner's lock, and free the owner's things if nobody else holds it."""
    os.close(lock_fd)
    _sweep_some(root, [owner_name])
    leave(root)


def sweep_empty(root: Path) -> None:
    """Remove the files of dead owners that have no segment left: their processes ended before a release."""
    for _ in _parts(root, empty=True):
        pass
    leave(root)


def free_all(root: Path, owner: str, fd: int, paths: Iterable[Path]) -> tuple[int, int]:
    """Free what a locked owner lists: segments, then path files, the lock file last, so that a crash loses nothing."""
    segments = freed = 0
    for name in _names_of(fd, paths):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            size = os.lstat(root / name).st_size
            os.unlink(root / name)
            segments, freed = segments + 1, freed + size
    for path in (*paths, root / f"{owner}.owner"):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            path.unlink()
    return segments, freed


def try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class _NoOwnerFile(Exception):
    """A directory, a link or a pipe, say, under the name of an owner file; or one that this process may not open."""


def _parts(root: Path, *, empty: bool = False) -> Iterator[SweepReport]:
    names = iter([match[1] for name in listing(root) if (match := _OWNER.fullmatch(name))])
    while part := list(itertools.islice(names, AT_ONCE)):
        yield _sweep_some(root, part, empty=empty)


def _sweep_some(root: Path, owners: Iterable[str], *, empty: bool = False) -> SweepReport:
    """empty: those alone that have no segment left."""
    odd: list[str] = []
    report = SweepReport()
    with contextlib.ExitStack() as locks:
        dead: dict[str, int] = {}
        for owner in owners:
            try:
                fd = locks.enter_context(_locked(root / f"{owner}.owner"))
            except _NoOwnerFile:
                odd.append(f"{owner}.owner")
                continue
            if fd is not None:
                dead[owner] = fd
        paths = path_files(root) if dead else {}  # read under the locks: nobody adds any more
        for owner, fd in dead.items():
            own = paths.get(owner, [])
            if empty and any((root / listed).exists() for listed in _names_of(fd, own)):
                continue
            segments, freed = free_all(root, owner, fd, own)
            report += SweepReport(owners=1, segments=segments, bytes=freed)
    return report + SweepReport(odd=tuple(odd))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The descriptor of a dead owner's file, locked; None when its owner lives or the file is gone.

    Raises _NoOwnerFile.
    """
    while True:
        try:
            fd = open_file(path, os.O_RDWR)
        except FileNotFoundError:
            yield None
            return
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise _NoOwnerFile from None
        try:
            if not try_lock(fd):
                yield None
                return
            # Another sweeper may have removed the file between open and flock: this lock then says nothing.
            if leads_to(path, fd):
                yield fd
                fcntl.flock(fd, fcntl.LOCK_UN)  # also for a process that was forked meanwhile and inherited it
                return
        finally:
            os.close(fd)


def _names_of(fd: int, paths: Iterable[Path]) -> set[str]:
    # Word by word: a list of all words of a file full of letters would be twenty times as large as the file.
    names = {word.group() for word in _WORD.finditer(read_list(fd)) if LISTED.fullmatch(word.group())}
    for path in paths:
        names.update(names_in(path))
    return names
