"""How far the loading of weights is: one line that moves on a terminal, some lines in a log."""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

MIB, GIB = 1 << 20, 1 << 30
QUIET_SECONDS = 2.0  # what loads faster says nothing
TERMINAL_SECONDS = 0.2  # between two redraws of the line
LOG_SECONDS = 10.0  # between two lines

log = logging.getLogger("pixelferry")


class LoadProgress:
    """Called with (bytes read, bytes in all) after each tensor."""

    def __init__(
        self,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """stream: where the line stands if it is a terminal, stderr by default."""
        self._stream = stream or sys.stderr
        self._clock = clock
        self._terminal = self._stream.isatty()
        self._next = clock() + QUIET_SECONDS
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if now < self._next and not (self._shown and done == total):
            return
        self._next = now + (TERMINAL_SECONDS if self._terminal else LOG_SECONDS)
        self._shown = True
        size = f"{total / GIB:.1f} GiB" if total >= GIB else f"{total / MIB:.0f} MiB"
        text = f"loading weights: {100 * done // max(1, total)} % of {size}"
        if self._terminal:
            self._stream.write(f"\r{text}" + ("\n" if done == total else ""))
            self._stream.flush()
        else:
            log.info(text)
