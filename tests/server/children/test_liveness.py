"""What counts as hanging while a child loads: silence, unless it works, and a pulse that tells no progress."""

import os
import signal
import subprocess
import sys

import pytest

from server.children import liveness
from server.children.liveness import Liveness
from shm import Loading, work_of
from tests.server.doubles import config_of


def watch(pid: int = 0) -> Liveness:
    """Of nobody, unless a process is named: the kernel tells nothing. It begins at 100 s."""
    watched = Liveness(config_of(pulse_seconds=20.0, load_seconds=600.0))
    watched.begin(pid, 100.0)
    return watched


def test_silence_is_hanging() -> None:
    loading = watch()
    assert loading.hang_reason(120.0) is None
    assert loading.hang_reason(120.5) == "silent for 20.5 s while it loads"
    loading.hear(Loading(steps=0), 120.6)
    assert loading.hang_reason(140.5) is None
    assert loading.hang_reason(141.0) == "silent for 20.4 s while it loads"


def test_a_pulse_without_progress_is_hanging_later() -> None:
    """Ten hours of a large checkpoint are as good as a second, while it gets further."""
    loading = watch()
    now = 100.0
    for step in range(1, 60):
        for _ in range(60):
            now += 9.9
            loading.hear(Loading(steps=step), now)
            assert loading.hang_reason(now) is None
    for _ in range(2):
        now += 15.0
        loading.hear(Loading(steps=59), now)
    assert loading.hang_reason(now) == "no further for 614 s while it loads"
    loading.hear(Loading(steps=60), now)
    assert loading.hang_reason(now) is None


def test_who_did_not_watch_excuses_as_much() -> None:
    loading = watch()
    loading.excuse(50.0)
    assert loading.hang_reason(170.0) is None and loading.hang_reason(170.5) is not None


def test_one_that_is_ready_need_not_get_further_and_is_silent_for_as_long() -> None:
    well = watch()
    well.ready = True
    well.hear(Loading(steps=0), 5000.0)
    assert well.hang_reason(5020.0) is None
    assert well.hang_reason(5020.5) == "silent for 20.5 s"


def test_who_works_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """One import may hold the interpreter, and with it the pulse, for as long as a slow disk takes."""
    ticks = iter([(0, 0), (0, 0), (0, 0), (5, 0), (5, 1), (5, 1)])
    monkeypatch.setattr(liveness, "work_of", lambda pid: next(ticks))
    loading = watch()
    assert [loading.hang_reason(now) is None for now in (115.0, 125.0, 140.0, 161.0)] == [True, True, True, False]


@pytest.mark.process
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
