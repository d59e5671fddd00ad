"""A bound on log lines that anybody can provoke."""

import time
from collections.abc import Callable


class Bound:
    """At most `lines` in each window of `seconds`; what is left out is counted."""

    def __init__(self, lines: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._lines = lines
        self._seconds = seconds
        self._clock = clock
        self._begun = clock()
        self._said = 0
        self._left_out = 0

    def take(self) -> int | None:
        """None: say nothing now. Else how many lines were left out before this one since the last one."""
        now = self._clock()
        if now - self._begun >= self._seconds:
            self._begun, self._said = now, 0
        if self._said >= self._lines:
            self._left_out += 1
            return None
        self._said += 1
        left_out, self._left_out = self._left_out, 0
        return left_out
