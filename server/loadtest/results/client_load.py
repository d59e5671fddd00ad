"""Whether this client was the bottleneck: its processor time, how late its loop and its requests were."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time

import numpy as np

BUSY = 0.8  # of one core: beyond it answers wait to be read
LATE = 0.02  # seconds: a delay that shows in latencies
STARVED = 0.1  # share of the time
TICK = 0.02  # seconds between two looks at the loop
EVERY = 1.0  # seconds of a sample
SCHEDSTAT = Path("/proc/self/schedstat")
STATM = Path("/proc/self/statm")


@dataclass(frozen=True, slots=True)
class ClientSample:
    """What the client was like during about a second."""

    at: float  # seconds of the run
    cpu: float  # cores
    lag_p99: float  # seconds that its loop came too late
    starved: float  # share of the time in which it was ready to run and had no core
    resident: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """The client over the whole run. `warnings` say why figures are not the server's alone."""

    cpu_mean: float = 0.0
    cpu_max: float = 0.0
    lag_p50: float = 0.0
    lag_p99: float = 0.0
    lag_max: float = 0.0
    wait_p99: float = 0.0
    starved: float = 0.0
    resident_first: int = 0
    resident_last: int = 0
    warnings: list[str] = field(default_factory=list)
    samples: list[ClientSample] = field(default_factory=list)


class ClientWatch:
    """Watches this process while a run goes on: collects samples, and how late each of its ticks came."""

    def __init__(self, started: float) -> None:
        self._started = started
        self.lags: list[float] = []
        self.samples: list[ClientSample] = []

    async def run(self) -> None:
        """Until it is cancelled."""
        wall, cpu, delayed, seen = perf_counter(), process_time(), run_delay(), 0
        while True:
            expected = perf_counter() + TICK
            await asyncio.sleep(TICK)
            now = perf_counter()
            self.lags.append(max(0.0, now - expected))
            if now - wall >= EVERY:
                late = float(np.percentile(self.lags[seen:], 99))
                used, starved = (process_time() - cpu) / (now - wall), (run_delay() - delayed) / (now - wall)
                self.samples.append(ClientSample(now - self._started, used, late, starved, resident_bytes()))
                wall, cpu, delayed, seen = now, process_time(), run_delay(), len(self.lags)

    def load(self, waits: Sequence[float]) -> ClientLoad:
        """The whole run. waits: how late requests left that only this client held back, in seconds."""
        seen = self.samples or [ClientSample(0.0, 0.0, 0.0, 0.0, 0)]
        lag_p50, lag_p99, lag_max = np.percentile(self.lags or [0.0], [50, 99, 100]).tolist()
        load = ClientLoad(
            cpu_mean=fmean(one.cpu for one in seen), cpu_max=max(one.cpu for one in seen), lag_p50=lag_p50,
            lag_p99=lag_p99, lag_max=lag_max, wait_p99=float(np.percentile(waits or [0.0], 99)),
            starved=fmean(one.starved for one in seen), resident_first=seen[0].resident,
            resident_last=seen[-1].resident, samples=self.samples,
        )  # fmt: skip
        load.warnings.extend(warnings_of(load))
        return load


def warnings_of(load: ClientLoad) -> list[str]:
    """Each thing that makes the client's own slowness a part of the latencies."""
    lag, wait = load.lag_p99 * 1000, load.wait_p99 * 1000
    said = (
        (load.cpu_mean > BUSY, f"the client used {load.cpu_mean:.0%} of a core: it can hardly send or read faster"),
        (load.lag_p99 > LATE, f"the client's loop was up to {lag:.0f} ms late (p99), and so are latencies"),
        (load.wait_p99 > LATE, f"requests left up to {wait:.0f} ms after they were due (p99)"),
        (load.starved > STARVED, f"the client was ready to run and had no core {load.starved:.0%} of the time"),
    )
    return [text for slow, text in said if slow]


def run_delay() -> float:
    """Seconds that this process's main thread was ready to run and did not; 0 where the kernel does not count them."""
    return _second_number(SCHEDSTAT) / 1e9


def resident_bytes() -> int:
    """Of this process; 0 where there is no /proc."""
    return _second_number(STATM) * os.sysconf("SC_PAGE_SIZE")


def _second_number(path: Path) -> int:
    try:
        return int(path.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
