"""Whether this client was the bottleneck: its processor time, how late its loop and its requests were."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import numpy.typing as npt

BUSY = 0.8  # of one core: beyond it answers wait to be read
LATE = 0.02  # seconds: a delay that shows in latencies
STARVED = 0.1  # share of the time
TICK = 0.02  # seconds between two looks at the loop
SCHEDSTAT = Path("/proc/self/schedstat")  # its second number: nanoseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLoad:
    """The client over the whole run. `warnings` say why figures are not the server's alone."""

    cpu: float = 0.0  # cores
    lag_p99: float = 0.0  # seconds that its loop came too late
    warnings: list[str] = field(default_factory=list)


class ClientWatch:
    """Watches this process while a run goes on: what it took, and how late each of its ticks came."""

    def __init__(self) -> None:
        self.lags: list[float] = []
        self.spent = np.zeros(3)

    async def run(self) -> None:
        """Until it is cancelled."""
        before = clocks()
        while True:
            expected = perf_counter() + TICK
            await asyncio.sleep(TICK)
            self.lags.append(max(0.0, perf_counter() - expected))
            self.spent = clocks() - before

    def load(self, waits: Sequence[float]) -> ClientLoad:
        """The whole run. waits: how late requests left that only this client held back, in seconds."""
        lag_p99, wait_p99 = (float(np.percentile(some or [0.0], 99)) for some in (self.lags, waits))
        cpu, starved = (self.spent[1:] / max(self.spent[0], TICK)).tolist()
        slow = (
            (cpu > BUSY, f"the client used {cpu:.0%} of a core: it can hardly send or read faster"),
            (lag_p99 > LATE, f"the client's loop was up to {lag_p99 * 1000:.0f} ms late (p99), and so are latencies"),
            (wait_p99 > LATE, f"requests left up to {wait_p99 * 1000:.0f} ms after they were due (p99)"),
            (starved > STARVED, f"the client was ready to run and had no core {starved:.0%} of the time"),
        )
        warnings = [text for is_so, text in slow if is_so]
        return ClientLoad(cpu=cpu, lag_p99=lag_p99, warnings=warnings)


def clocks() -> npt.NDArray[np.float64]:
    """Seconds of the wall, of this process on a core, and those in which it was ready to run and had no core.

    The last is 0 where the kernel does not count it.
    """
    try:
        waited = int(SCHEDSTAT.read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        waited = 0.0
    return np.array([perf_counter(), process_time(), waited])
