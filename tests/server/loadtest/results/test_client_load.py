"""The client's look at itself: a loop that is blocked is late by as much, work is counted, and a bottleneck is told."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from server.loadtest.results import client_load
from server.loadtest.results.client_load import ClientLoad, ClientWatch, clocks
from tests.server.tables import each_of


def load_of(lags: list[float], waits: Sequence[float], cpu: float = 0.1, starved: float = 0.0) -> ClientLoad:
    """Of a run of ten seconds."""
    watch = ClientWatch()
    watch.lags, watch.spent = lags, np.array([10.0, 10 * cpu, 10 * starved])
    return watch.load(waits)


def test_an_easy_run_has_no_warning() -> None:
    load = load_of([0.001] * 100, [0.001] * 100)
    assert load.warnings == [] and load.cpu == pytest.approx(0.1)


@each_of(
    ("load", "said"),
    [
        (load_of([0.001], [], cpu=0.95), "used 95% of a core"),
        (load_of([0.001] * 90 + [0.05] * 10, []), "loop was up to 50 ms late"),
        (load_of([0.001], [0.0] * 90 + [0.3] * 10), "left up to 300 ms after"),
        (load_of([0.001], [], starved=0.4), "had no core 40% of the time"),
    ],
)
def test_each_way_to_be_slow_is_said(load: ClientLoad, said: str) -> None:
    warnings = load.warnings
    assert len(warnings) == 1 and said in warnings[0]


def test_a_run_too_short_for_a_look_has_no_figures() -> None:
    load = ClientWatch().load([])
    assert (load.cpu, load.lag_p99, load.warnings) == (0.0, 0.0, [])


def test_a_blocked_loop_and_a_busy_core_are_seen() -> None:
    async def run() -> ClientWatch:
        watch = ClientWatch()
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
    assert 0.15 <= watch.spent[1] <= watch.spent[0]


def test_what_the_kernel_does_not_tell_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert clocks()[2] >= 0
    monkeypatch.setattr(client_load, "SCHEDSTAT", Path("/nowhere"))
    assert clocks()[2] == 0
