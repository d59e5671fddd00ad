"""Watches this process while a run goes on: processor time, time without a core, lateness of the loop, memory."""

import asyncio
import os
from pathlib import Path
from time import perf_counter, process_time

from server.loadtest.results.client_load import ClientSample
from server.loadtest.results.measures import percentile

TICK = 0.02  # seconds between two looks at the loop
EVERY = 1.0  # seconds of a sample
SCHEDSTAT = Path("/proc/self/schedstat")
STATM = Path("/proc/self/statm")


class OwnWatch:
    """Collects samples, and how late each of its ticks came."""

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
                late = percentile(sorted(self.lags[seen:]), 99)
                used, starved = (process_time() - cpu) / (now - wall), (run_delay() - delayed) / (now - wall)
                self.samples.append(ClientSample(now - self._started, used, late, starved, resident_bytes()))
                wall, cpu, delayed, seen = now, process_time(), run_delay(), len(self.lags)


def run_delay() -> float:
    """Seconds that this process's main thread was ready to run and did not; 0 where the kernel does not count them."""
    try:
        return int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def resident_bytes() -> int:
    """Of this process; 0 where there is no /proc."""
    try:
        return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
