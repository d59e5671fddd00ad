"""What the kernel counts goes on while a process works, and stands still while it is stopped or waits for itself."""

import os
import signal
import subprocess
import sys

import pytest

from server.children import proc_stat
from server.children.proc_stat import ProcStat, work_of


def test_what_the_kernel_tells_of_a_process() -> None:
    """It grows while the process works, and stands still while it is stopped."""
    before = work_of(os.getpid())
    assert before is not None and before[1] > 0
    process = subprocess.Popen([sys.executable, "-ISc", "while True: pass"])
    try:
        while not (first := work_of(process.pid)) or first[1] < 3:
            pass
        os.kill(process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        stopped = work_of(process.pid)
        assert sum(range(3_000_000)) and work_of(process.pid) == stopped
    finally:
        process.kill()
        process.wait()
    assert work_of(process.pid) is None


def test_it_has_worked_when_the_counts_have_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([(0, 0), (0, 0), (0, 1), (0, 1), (1, 1), None, None])
    monkeypatch.setattr(proc_stat, "work_of", lambda pid: next(ticks))
    stat = ProcStat(0, 10.0)
    assert [stat.last_work(now) for now in (11.0, 12.0, 13.0, 14.0, 15.0, 16.0)] == [
        10.0,
        12.0,
        12.0,
        14.0,
        15.0,
        15.0,
    ]
