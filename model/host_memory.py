"""How much of the machine's memory this process may still take: what is free, within the limits of its cgroups."""

from collections.abc import Iterator
from pathlib import Path

from configs.checkpoint import CheckpointError
from model.cgroups import directories


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
    for version, directory in directories(root, "memory"):
        limit, usage, droppable = names[version]
        try:
            most = (directory / limit).read_text().strip()
            used = int((directory / usage).read_text())
            stat = dict(line.split(" ", 1) for line in (directory / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue  # no such cgroup here, or one without a limit: the root of version 2
        if most != "max":
            yield max(0, int(most) - used + int(stat.get(droppable, 0)))
