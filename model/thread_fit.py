"""With how many threads a CPU computes now: all that thread_limit.py leaves it, or one, whichever decodes faster."""

import math
import os
import statistics
from collections.abc import Callable, Sequence

import torch

ROUNDS = 4  # of a comparison at start
LEAVES_A_CORE = 1.1  # times as long may one thread take at start: the others have the rest of the machine then
SLOW_SECONDS = 0.02  # a step that takes so long is worth its threads

FASTER = 0.8  # of the time of all threads must one take while it serves: it encodes pictures more slowly, too
TRIAL = 6  # steps of a comparison while it serves, all threads and one in turns
RECENT = 8  # steps whose median is "now"
SLOWER = 1.4  # times what was usual: something else may be running
SHORTEST, LONGEST = 24, 768  # steps to the next comparison: twice as many after each that found all threads right

PARALLEL = 1 << 20  # elements that torch works on with all its threads


class Team:
    """The calling thread and those that OpenMP starts for it; one on each core where they are as many.

    Beside a process that keeps a core busy, the kernel puts two threads that wait for each other on one core, and each
    then runs while the other should. Bound to a core each, they share one of them with that process, no more.
    """

    def __init__(self, n: int) -> None:
        """In the thread that will compute, before it does so for the first time."""
        self.n = n
        torch.set_num_threads(n)  # which starts threads of another pool
        before = set(os.listdir("/proc/self/task"))
        torch.zeros(PARALLEL).add_(1)
        others = sorted(int(task) for task in set(os.listdir("/proc/self/task")) - before)
        self._cores = sorted(os.sched_getaffinity(0))
        self._others = others if len(others) + 1 == n == len(self._cores) else []

    def bind(self) -> None:
        for task, core in zip(self._others, self._cores[1:], strict=True) if self._others else ():
            os.sched_setaffinity(task, {core})
        self.use(self.n)

    def use(self, n: int) -> None:
        """All threads, or one, which may run on any core."""
        torch.set_num_threads(n)
        if self._others:
            os.sched_setaffinity(0, self._cores[:1] if n == self.n else self._cores)


def fit_at_start(most: int, use: Callable[[int], None], decode: Callable[[], Sequence[float]]) -> tuple[int, str]:
    """Threads to serve with, `most` or one, and what was found, in words. decode: seconds of some steps; [] for none.

    In a small network threads wait for each other longer than they compute, and more so beside other processes. The
    fastest of several steps counts: what else runs on the machine at this moment does not.
    """
    tried: dict[int, list[float]] = {most: [], 1: []}
    for _ in range(ROUNDS):
        for n, seconds in tried.items():
            use(n)
            seconds += decode()
            if not seconds or min(seconds) > SLOW_SECONDS:
                use(most)
                return most, f"{most}: a step takes {min(seconds) * 1e3:.3g} ms" if seconds else ""
    many, one = min(tried[most]) * 1e3, min(tried[1]) * 1e3
    chosen = 1 if one <= many * LEAVES_A_CORE else most
    use(chosen)
    return chosen, f"{chosen}: a step of one sequence takes {one:.2g} ms with one and {many:.2g} ms with {most}"


class ThreadFit:
    """Compares both again while the engine serves.

    Threads of one step wait for each other, so a process that takes a core away makes all of them slow: one thread,
    which the kernel moves to the free core, is then faster. Only steps that decode and do nothing else are looked at,
    because their times are alike. A comparison is due where they take longer than they did, and from time to time:
    nothing tells one thread that the core beside it is free again.
    """

    def __init__(self, most: int, use: Callable[[int], None]) -> None:
        self.threads = self._most = most
        self._use = use
        self._trial: list[float] | None = None
        self._gap = self._left = SHORTEST
        self._usual, self._recent = math.inf, list[float]()

    def decoded(self, seconds: float) -> None:
        """A step that only decoded took so long: choose the threads of the next."""
        if self._trial is not None:
            self._trial.append(seconds)
            self._use(1 if len(self._trial) % 2 else self._most)
            if len(self._trial) == TRIAL:
                self._choose(self._trial)
        elif self._due(seconds):
            self._trial = []
            self._use(self._most)

    def _due(self, seconds: float) -> bool:
        self._left -= 1
        self._recent = [*self._recent[1 - RECENT :], seconds]
        slower = len(self._recent) == RECENT and statistics.median(self._recent) > SLOWER * self._usual
        return slower or self._left <= 0

    def _choose(self, trial: list[float]) -> None:
        many, one = statistics.median(trial[::2]), statistics.median(trial[1::2])
        before, self.threads = self.threads, 1 if one < many * FASTER else self._most
        self._use(self.threads)
        self._gap = min(2 * self._gap, LONGEST) if before == self.threads == self._most else SHORTEST
        self._left, self._trial = self._gap, None
        self._usual, self._recent = one if self.threads == 1 else many, []
