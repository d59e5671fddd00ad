"""What the machine leaves this process: memory and cores, within the limits of its cgroups, version 1 and 2."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from configs.checkpoint import CheckpointError


def free_host_bytes(root: Path = Path("/")) -> int:
    """MemAvailable, and at most what the process's cgroup and each above it (version 1 or 2) leave of their limits.

    Pages of files that a cgroup can drop at once count as free, as they do in MemAvailable. `root` holds proc and sys.
    Raises CheckpointError where the kernel does not tell.
    """
    return min([_available(root), *_left_in_cgroups(root)])


def _available(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    raise CheckpointError("/proc/meminfo has no MemAvailable: the size of the KV cache needs --kv-cache-mib")


def _left_in_cgroups(root: Path) -> Iterator[int]:
    names = {
        2: ("memory.max", "memory.current", "inactive_file"),
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    }
    for version, directory in _cgroups(root, "memory"):
        limit, usage, droppable = names[version]
        try:
            most = (directory / limit).read_text().strip()
            used = int((directory / usage).read_text())
            stat = dict(line.split(" ", 1) for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # no such cgroup here, or one without a limit: the root of version 2
        if most != "max":
            yield max(0, int(most) - used + int(stat.get(droppable, 0)))


def usable_cores(root: Path = Path("/")) -> tuple[int, float | None]:
    """(cores that its affinity allows, the tightest CPU quota in cores or None). `root` holds proc and sys."""
    return len(os.sched_getaffinity(0)), min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for version, directory in _cgroups(root, "cpu"):
        try:
            if version == 2:
                quota, period = (directory / "cpu.max").read_text().split()
            else:
                quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:  # version 1 writes -1 for none
                yield int(quota) / int(period)
        except (OSError, ValueError):
            continue  # no such cgroup here, or one without this controller


def _cgroups(root: Path, controller: str) -> Iterator[tuple[int, Path]]:
    """(version, directory) of the process's cgroup and of each above it, for a controller such as "memory" or "cpu".

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
