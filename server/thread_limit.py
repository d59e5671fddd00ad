"""At most how many threads the engine computes with, so that its neighbours have room; thread_fit.py fits them."""

import math
from dataclasses import dataclass

from configs.machine import usable_cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Threads:
    n: int
    reason: str  # for the table at start

    def of_each(self, ranks: int) -> int:
        """Of each of so many processes that compute together."""
        return max(self.n // ranks, 1)


def choose_threads(asked: int | None, workers: int, cores: int, quota: float | None) -> Threads:
    """What was asked for; else every whole core that affinity and quota leave, from four on less some for the others.

    The server's loop and the workers share the machine with the engine. On two or three cores they get by in the gaps
    of its steps; from four on a quarter is theirs, at most a core for each worker. A thread above the quota would make
    all of them wait for the rest of each period, because the threads of one step wait for each other.
    """
    if asked is not None:
        return Threads(n=asked, reason="as asked for")
    whole = max(1, min(cores, math.floor(quota)) if quota is not None else cores)
    left = min(workers, whole // 4)
    limits = f"{cores} cores" + (f", quota {quota:g}" if quota is not None else "")
    return Threads(n=whole - left, reason=f"{limits}; {left or 'none'} left to server and workers")


def threads_here(asked: int | None, workers: int) -> Threads:
    """The same for this process and its children."""
    return choose_threads(asked, workers, *usable_cores())
