"""A bound on lines of the log that anybody can cause, and on nothing else."""

import time
from collections.abc import Callable

LINES, SECONDS = 10, 60.0


class LineBound:
    """At most LINES in each window of SECONDS; what is left out is counted."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun = clock()
        self._said = 0
        self._left_out = 0

    def take(self) -> str | None:
        """None: say nothing now. Else what to say behind a line: how many were left out before it since the last."""
        now = self._clock()
        if now - self._begun >= SECONDS:
            self._begun, self._said = now, 0
        if self._said >= LINES:
            self._left_out += 1
            return None
        self._said += 1
        left_out, self._left_out = self._left_out, 0
        return f" ({left_out} such lines were left out before)" if left_out else ""
