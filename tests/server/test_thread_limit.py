"""Threads of the engine: by cores, affinity and quota, with the reason; and where they wait."""

import os
import re
import subprocess
import sys
from pathlib import Path

from configs.machine import usable_cores
from server.thread_limit import Threads, choose_threads, threads_here
from tests.server.tables import each_of


@each_of(
    ("asked", "workers", "cores", "quota", "found"),
    [
        (None, 2, 1, None, 1),
        (None, 2, 2, None, 2),
        (None, 2, 3, None, 3),
        (None, 2, 4, None, 3),
        (None, 2, 8, None, 6),
        (None, 2, 64, None, 62),
        (None, 8, 64, None, 56),
        (None, 1, 8, None, 7),
        (None, 2, 64, 8.0, 6),
        (None, 2, 64, 3.9, 3),
        (None, 2, 64, 1.5, 1),
        (None, 2, 64, 0.25, 1),
        (None, 2, 2, 16.0, 2),
        (5, 2, 2, 0.5, 5),
    ],
)
def test_choice(asked: int | None, workers: int, cores: int, quota: float | None, found: int) -> None:
    assert choose_threads(asked, workers, cores, quota).n == found


def test_the_reason_names_what_decided() -> None:
    assert choose_threads(5, 2, 64, None).reason == "as asked for"
    assert [choose_threads(5, 2, 64, None).of_each(n) for n in (1, 2, 5, 8)] == [5, 2, 1, 1]
    assert choose_threads(None, 2, 64, 3.5) == Threads(
        n=3, reason="64 cores, quota 3.5; none left to server and workers"
    )
    assert choose_threads(None, 2, 8, None).reason == "8 cores; 2 left to server and workers"


def machine(root: Path, cgroup: str, **files: str) -> Path:
    """What the kernel says, below `root`; a file's name has __ for a slash and _of_ for a dot."""
    named = {"proc/self/cgroup": cgroup, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}
    for name, text in named.items():
        path = root / name.replace("__", "/").replace("_of_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_quotas_of_version_2(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/a/b\n", cpu_of_max="max 100000\n", a__cpu_of_max="350000 100000\n")
    assert usable_cores(root)[1] == 3.5
    machine(tmp_path, "0::/a/b\n", a__b__cpu_of_max="50000 100000\n")
    assert usable_cores(root)[1] == 0.5, "the tightest"


def test_quotas_of_version_1(tmp_path: Path) -> None:
    at = "cpu,cpuacct__docker__x__cpu_of_cfs"
    files = {f"{at}_quota_us": "250000\n", f"{at}_period_us": "100000\n"}
    root = machine(tmp_path, "4:cpu,cpuacct:/docker/x\n1:name=systemd:/\n", **files)
    assert usable_cores(root)[1] == 2.5
    machine(tmp_path, "4:cpu,cpuacct:/docker/x\n", **{f"{at}_quota_us": "-1\n"})
    assert usable_cores(root)[1] is None


def test_without_cgroups_the_affinity_decides(tmp_path: Path) -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n" + (
        "from pathlib import Path; from configs.machine import usable_cores\n"
        f"print(*usable_cores(Path({str(tmp_path)!r})))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "None"]


def test_this_machine() -> None:
    found = threads_here(None, 2)
    assert 1 <= found.n <= len(os.sched_getaffinity(0))
    assert re.search(rf"^{len(os.sched_getaffinity(0))} cores", found.reason)
