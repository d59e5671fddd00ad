"""The client's look at itself: a loop that is blocked is late by as much, work is counted, and a bottleneck is told."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import pytest

from server.loadtest.results import client_load
from server.loadtest.results.client_load import SCHEDSTAT, STATM, ClientLoad, ClientSample, ClientWatch, second_number


def load_of(samples: list[ClientSample], lags: list[float], waits: Sequence[float]) -> ClientLoad:
    watch = ClientWatch(0.0)
    watch.samples, watch.lags = samples, lags
    return watch.load(waits)


def samples(cpu: float = 0.1, starved: float = 0.0) -> list[ClientSample]:
    return [ClientSample(float(second), cpu, 0.001, starved, 1000 + second) for second in range(4)]


def test_an_easy_run_has_no_warning() -> None:
    load = load_of(samples(), [0.001] * 100, [0.001] * 100)
    assert load.warnings == []
    assert load.cpu_mean == pytest.approx(0.1)
    assert (load.resident_first, load.resident_last) == (1000, 1003)


@pytest.mark.parametrize(
    ("load", "said"),
    [
        (load_of(samples(cpu=0.95), [0.001], []), "used 95% of a core"),
        (load_of(samples(), [0.001] * 90 + [0.05] * 10, []), "loop was up to 50 ms late"),
        (load_of(samples(), [0.001], [0.0] * 90 + [0.3] * 10), "left up to 300 ms after"),
        (load_of(samples(starved=0.4), [0.001], []), "had no core 40% of the time"),
    ],
)
def test_each_way_to_be_slow_is_said(load: ClientLoad, said: str) -> None:
    warnings = load.warnings
    assert len(warnings) == 1 and said in warnings[0]


def test_a_run_too_short_for_a_sample_has_no_figures() -> None:
    load = load_of([], [], [])
    assert (load.cpu_mean, load.lag_p99, load.warnings) == (0.0, 0.0, [])


def test_a_blocked_loop_and_a_busy_core_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_load, "EVERY", 0.1)

    async def run() -> ClientWatch:
        watch = ClientWatch(perf_counter())
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


def test_what_the_kernel_does_not_tell_is_nothing() -> None:
    assert second_number(SCHEDSTAT) >= 0 and second_number(STATM) > 0
    assert second_number(Path("/nowhere")) == 0
