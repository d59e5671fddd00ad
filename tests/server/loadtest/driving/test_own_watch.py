"""The client's look at itself: a loop that is blocked is late by as much, and work is counted."""

import asyncio
import time
from pathlib import Path
from time import perf_counter

import pytest

from server.loadtest.driving import own_watch
from server.loadtest.driving.own_watch import OwnWatch, resident_bytes, run_delay


def test_a_blocked_loop_and_a_busy_core_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_watch, "EVERY", 0.1)

    async def run() -> OwnWatch:
        watch = OwnWatch(perf_counter())
        task = asyncio.create_task(watch.run())
        await asyncio.sleep(0.01)
        until = time.process_time() + 0.15
        while time.process_time() < until:
            pass
        for _ in range(10):
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return watch

    watch = asyncio.run(run())
    assert max(watch.lags) >= 0.12, "0.15 s of work, less what was left of a tick"
    assert watch.samples and max(sample.cpu for sample in watch.samples) > 0.0
    assert all(sample.resident > 1e6 for sample in watch.samples)


def test_what_the_kernel_does_not_tell_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_delay() >= 0 and resident_bytes() > 0
    monkeypatch.setattr(own_watch, "SCHEDSTAT", Path("/nowhere"))
    monkeypatch.setattr(own_watch, "STATM", Path("/nowhere"))
    assert (run_delay(), resident_bytes()) == (0.0, 0)
