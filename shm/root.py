"""The directory of all segments, private to this user: where it is, whether it is ours, what lies in it."""

import contextlib
import os
import stat
import sys
from pathlib import Path

_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


class OwnerError(Exception):
    """The directory or the owner file is not one that this process may own segments in."""


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


def left_in(root: Path) -> int:
    """Bytes that this user may still take of the file system; much where it has no limit, or there is no `root` now."""
    with contextlib.suppress(OSError):
        if (found := os.statvfs(root)).f_blocks:
            return found.f_bavail * found.f_frsize
    return sys.maxsize


def disk_under(root: Path) -> str | None:
    """The type of the file system that holds `root`, where that is none in memory; None where nothing tells."""
    device = os.stat(root).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for mount in Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        place, _, source = mount.partition(" - ")
        if place.split()[2] == number:
            kind = source.split()[0]
            return None if kind in _IN_MEMORY else kind
    return None


def make_root(root: Path) -> None:
    try:
        root.mkdir(mode=0o700)
    except FileExistsError:
        check_root(root)
    except OSError as error:
        raise OwnerError(f"{root} cannot be created: {os.strerror(error.errno or 0)}") from None


def check_root(root: Path) -> None:
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


def listing(root: Path) -> list[str]:
    try:
        return os.listdir(root)
    except FileNotFoundError:
        return []


def leave(root: Path) -> None:
    with contextlib.suppress(OSError):  # not empty: others still live here
        root.rmdir()
