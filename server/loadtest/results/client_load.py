"""Whether this client was the bottleneck: its processor time, how late its loop and its requests were."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from time import perf_counter, process_time

import numpy as np
import numpy.typing as npt

BUSY = 0.8  # of one core: beyond it answers wait to be read
LATE = 0.02  # seconds: a delay that shows in latencies
STARVED = 0.1  # share of the time
TICK = 0.02  # seconds between two looks at the loop
EVERY = 1.0  # seconds of a sample
SCHEDSTAT = Path("/proc/self/schedstat")  # its second number: nanoseconds
STATM = Path("/proc/self/statm")  # its second number: resident pages


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
        before, seen = clocks(), 0
        while True:
            expected = perf_counter() + TICK
            await asyncio.sleep(TICK)
            now = perf_counter()
            self.lags.append(max(0.0, now - expected))
            if now - before[0] >= EVERY:
                after = clocks()
                wall, cpu, starved = (after - before).tolist()
                late = float(np.percentile(self.lags[seen:], 99))
                resident = second_number(STATM) * os.sysconf("SC_PAGE_SIZE")
                self.samples.append(ClientSample(now - self._started, cpu / wall, late, starved / wall, resident))
                before, seen = after, len(self.lags)

    def load(self, waits: Sequence[float]) -> ClientLoad:
        """The whole run. waits: how late requests left that only this client held back, in seconds."""
        seen = self.samples or [ClientSample(0.0, 0.0, 0.0, 0.0, 0)]
        lag_p50, lag_p99, lag_max = np.percentile(self.lags or [0.0], [50, 99, 100]).tolist()
        wait_p99 = float(np.percentile(waits or [0.0], 99))
        cpu, starved = fmean(one.cpu for one in seen), fmean(one.starved for one in seen)
        slow = (
            (cpu > BUSY, f"the client used {cpu:.0%} of a core: it can hardly send or read faster"),
            (lag_p99 > LATE, f"the client's loop was up to {lag_p99 * 1000:.0f} ms late (p99), and so are latencies"),
            (wait_p99 > LATE, f"requests left up to {wait_p99 * 1000:.0f} ms after they were due (p99)"),
            (starved > STARVED, f"the client was ready to run and had no core {starved:.0%} of the time"),
        )
        return ClientLoad(
            cpu_mean=cpu, cpu_max=max(one.cpu for one in seen), lag_p50=lag_p50, lag_p99=lag_p99, lag_max=lag_max,
            wait_p99=wait_p99, starved=starved, resident_first=seen[0].resident, resident_last=seen[-1].resident,
            warnings=[text for is_so, text in slow if is_so], samples=self.samples,
        )  # fmt: skip


def clocks() -> npt.NDArray[np.float64]:
    """Seconds of the wall, of this process on a core, and those in which it was ready to run and had no core."""
    return np.array([perf_counter(), process_time(), second_number(SCHEDSTAT) / 1e9])


def second_number(path: Path) -> int:
    """Of a file of /proc; 0 where the kernel does not count that."""
    try:
        return int(path.read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
