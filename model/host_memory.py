"""How much of the machine's memory this process may still take: what is free, within the limits of its cgroups."""

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
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return  # a kernel without cgroups
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for mount in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _left_above(root / mount, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
            yield from _left_above(root / "sys/fs/cgroup/memory", path, *names)


def _left_above(mount: Path, path: str, limit: str, usage: str, droppable: str) -> Iterator[int]:
    """Of the cgroup at `path` and each above it. Where a container sees its own alone, that one lies at `mount`."""
    parts = PurePosixPath(path.lstrip("/"))
    for directory in (mount / parts, *(mount / above for above in parts.parents)):
        try:
            most = (directory / limit).read_text().strip()
            used = int((directory / usage).read_text())
            stat = dict(line.split(" ", 1) for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # no such cgroup here, or one without a limit: the root of version 2
        if most != "max":
            yield max(0, int(most) - used + int(stat.get(droppable, 0)))
