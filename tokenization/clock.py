"""Seconds that one job spent in each of its stages. Knows no stage by name."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class StageClock:
    """A sum of seconds per stage; a stage may be entered many times, not within itself."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of this block to `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
