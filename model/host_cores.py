"""How many cores this process may use at once: its affinity, within the CPU quotas of its cgroups."""

import os
from collections.abc import Iterator
from pathlib import Path

from model.cgroups import directories


def usable_cores(root: Path = Path("/")) -> tuple[int, float | None]:
    """(cores that it may run on, the tightest quota in cores or None). `root` holds proc and sys."""
    return len(os.sched_getaffinity(0)), min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for version, directory in directories(root, "cpu"):
        try:
            if version == 2:
                quota, period = (directory / "cpu.max").read_text().split()
            else:
                quota, period = ((directory / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if quota != "max" and int(quota) > 0:  # version 1 writes -1 for none
                yield int(quota) / int(period)
        except (OSError, ValueError):
            continue  # no such cgroup here, or one without this controller
