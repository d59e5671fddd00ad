"""Who owns segments: a locked file that lists them, and the sweep after owners that are dead.

The owner and children that inherit the descriptor hold the lock; a sweeper frees what the file lists when nobody does.
A name is listed from before its file exists until the file is gone, so that a crash leaves at most idle names.
"""

import contextlib
import fcntl
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shm.ledger import names_in
from shm.segment import SegmentFull, is_full, leads_to

_OWNER = re.compile(r"([0-9a-f]{16})\.owner")
_LISTED = re.compile(r"[0-9a-f]{11}(\.idle)?")  # a word can tell the first form only: no word leads to an idle segment
_SLOT = 17  # bytes of one line: a name, blanks, a line end. Fixed, so that the line of a dead name is written again


class OwnerError(Exception):
    """The directory or the owner file is not one that this process may own segments in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    owners: int = 0  # dead owners whose lock file was removed
    segments: int = 0
    bytes: int = 0  # lengths of those segments' files


def default_root() -> Path:
    return Path(f"/dev/shm/pixelferry-{os.geteuid()}")


def private_root(path: Path) -> Path:
    """`path` itself where it is missing or of mode 0700, else a directory of this user inside it; makes neither.

    A directory that others may enter, as /dev/shm or a Kubernetes emptyDir of mode 0777, is so no place for segments
    and yet a place for their directory. Whether that one is ours is checked when it is made.
    """
    try:
        found = os.lstat(path)
    except OSError:
        return path
    shared = stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o777 != 0o700
    return path / f"pixelferry-{os.geteuid()}" if shared else path


def room(root: Path) -> int:
    """Bytes that the file system under `root` holds in all; one without a limit (tmpfs of size=0) says 0 blocks."""
    found = os.statvfs(root)
    return found.f_blocks * found.f_frsize or sys.maxsize


def path_file(root: Path, owner: str, request_id: str) -> Path:
    return root / f"{owner}.{request_id}.paths"


def path_files(root: Path, owner: str) -> list[Path]:
    return [root / name for name in _listing(root) if name.startswith(f"{owner}.") and name.endswith(".paths")]


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
            _make_root(root)
            try:
                fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            except FileNotFoundError:
                continue  # somebody's last owner left, and took the empty directory along
            except OSError as error:
                raise OwnerError(f"no file can be created in {root}: {os.strerror(error.errno or 0)}") from None
            # Between open and flock a sweeper may have taken this file for a dead owner's. Then it holds the lock,
            # or has already removed the file: this name is lost, and nothing else, for it lists nothing yet.
            if _try_lock(fd) and leads_to(path, fd):
                return cls(root, name, fd)
            path.unlink(missing_ok=True)
            os.close(fd)

    def fileno(self) -> int:
        return self._fd

    def record(self, name: str) -> None:
        """List `name` before its file exists. Raises SegmentFull, and OwnerError when the owner file was removed."""
        if not _LISTED.fullmatch(name):
            raise ValueError("not a name that a sweep would free")
        if not leads_to(self.root / f"{self.name}.owner", self._fd):
            # Nobody could find the segment after a crash, and others may take this owner for dead.
            raise OwnerError("the owner file was removed by somebody: restart this process")
        slot = self._free.pop() if self._free else len(self._slot_of)
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
            _free_all(self.root, self.name, self._fd)
            os.close(self._fd)
            self._fd = -1
            _leave(self.root)


def sweep(root: Path) -> SweepReport:
    """Free everything of dead owners and nothing of live ones. Raises OwnerError for a `root` of another user or mode.

    Segments that no owner file lists stay: somebody removed that file, and its lock was the only proof of a death.
    """
    if not root.exists():
        return SweepReport()
    _check_root(root)
    owners = segments = freed = 0
    for name in _listing(root):
        match = _OWNER.fullmatch(name)
        if match and (found := _sweep_one(root, match[1])) is not None:
            owners, segments, freed = owners + 1, segments + found[0], freed + found[1]
    _leave(root)
    return SweepReport(owners=owners, segments=segments, bytes=freed)


def sweep_if_last(root: Path, lock_fd: int, owner_name: str) -> None:
    """Give up this process's hold on the owner's lock, and free the owner's things if nobody else holds it."""
    os.close(lock_fd)
    _sweep_one(root, owner_name)
    _leave(root)


def sweep_empty(root: Path) -> None:
    """Remove the files of dead owners that have no segment left: their processes ended before a release."""
    for name in _listing(root):
        match = _OWNER.fullmatch(name)
        if match:
            with _locked(root / name) as fd:
                if fd is not None and not any((root / listed).exists() for listed in _names_of(root, match[1], fd)):
                    _free_all(root, match[1], fd)
    _leave(root)


def _sweep_one(root: Path, owner: str) -> tuple[int, int] | None:
    with _locked(root / f"{owner}.owner") as fd:
        return None if fd is None else _free_all(root, owner, fd)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """The descriptor of a dead owner's file, locked; None when its owner lives or the file is gone."""
    while True:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            yield None
            return
        try:
            if not _try_lock(fd):
                yield None
                return
            # Another sweeper may have removed the file between open and flock: this lock then says nothing.
            if leads_to(path, fd):
                yield fd
                fcntl.flock(fd, fcntl.LOCK_UN)  # also for a process that was forked meanwhile and inherited it
                return
        finally:
            os.close(fd)


def _free_all(root: Path, owner: str, fd: int) -> tuple[int, int]:
    """Free what a locked owner lists: segments, then path files, the lock file last, so that a crash loses nothing."""
    segments = freed = 0
    for name in _names_of(root, owner, fd):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            size = os.lstat(root / name).st_size
            os.unlink(root / name)
            segments, freed = segments + 1, freed + size
    for path in path_files(root, owner):
        path.unlink(missing_ok=True)
    (root / f"{owner}.owner").unlink(missing_ok=True)
    return segments, freed


def _names_of(root: Path, owner: str, fd: int) -> set[str]:
    text = os.pread(fd, os.fstat(fd).st_size, 0).decode("ascii", errors="replace")
    names = {name for name in text.split() if _LISTED.fullmatch(name)}
    for path in path_files(root, owner):
        names.update(names_in(path))
    return names


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        _check_root(root)
    except OSError as error:
        raise OwnerError(f"{root} cannot be created: {os.strerror(error.errno or 0)}") from None


def _check_root(root: Path) -> None:
    try:
        found = os.lstat(root)
    except FileNotFoundError:
        return  # the last owner left a moment ago
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if not stat.S_ISDIR(found.st_mode):
        raise OwnerError(f"{root} is not a directory")
    if found.st_uid != os.geteuid():
        raise OwnerError(
            f"{root} belongs to user {found.st_uid}, and this process runs as {os.geteuid()}: "
            "remove it, or name another directory"
        )
    if mode != 0o700:
        raise OwnerError(f"{root} has mode {mode:04o}; only 0700 keeps other users out")


def _listing(root: Path) -> list[str]:
    try:
        return os.listdir(root)
    except FileNotFoundError:
        return []


def _leave(root: Path) -> None:
    with contextlib.suppress(OSError):  # not empty: others still live here
        root.rmdir()
