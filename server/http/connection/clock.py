"""The clock that connections are measured by: it stands still while this process does."""

import time
from collections.abc import Callable

TICK_SECONDS = 0.5  # how often it is set, and so how exact a deadline is


class Clock:
    """`now` in seconds. A stopped or starved server has read nothing of what came meanwhile: no client's fault."""

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self.now = 0.0
        self._read = read
        self._last = read()

    def tick(self) -> None:
        last, self._last = self._last, self._read()
        self.now += min(self._last - last, 2 * TICK_SECONDS)
