"""The cgroups that a process lies in: directories of limits, of version 1 and 2, its own one and each above it."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def directories(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, directory) for a controller such as "memory" or "cpu". `root` holds proc and sys.

    Where a container sees its own cgroup alone, that one lies at the mount. A directory may be missing here.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # a kernel without cgroups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from ((2, directory) for directory in _above(root / mount, path))
        elif controller in controllers.split(","):
            for mount in (f"sys/fs/cgroup/{controller}", f"sys/fs/cgroup/{controllers}"):
                yield from ((1, directory) for directory in _above(root / mount, path))


def _above(mount: Path, path: str) -> Iterator[Path]:
    parts = PurePosixPath(path.lstrip("/"))
    yield from (mount / part for part in (parts, *parts.parents))
