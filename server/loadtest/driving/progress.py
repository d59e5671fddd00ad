"""How far a run is: one line that moves on a terminal, a line now and then elsewhere."""

import asyncio
from time import perf_counter
from typing import TextIO

from server.loadtest.results.measures import Record

ON_TERMINAL, ELSEWHERE = 0.5, 10.0  # seconds between two lines


class ProgressLine:
    """Counts what happens and shows it."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._sent = self._ended = self._errors = 0
        self.label = ""

    def sent(self) -> None:
        self._sent += 1

    def ended(self, record: Record) -> None:
        self._ended += 1
        self._errors += record.error is not None

    def line(self, elapsed: float) -> str:
        """What is known now."""
        return (
            f"{self.label}{elapsed:6.1f} s  {self._ended} done, {self._sent - self._ended} under way, "
            f"{self._errors} errors, {self._ended / max(0.001, elapsed):.1f} req/s"
        )

    async def run(self) -> None:
        """Show it until it is cancelled."""
        if self._quiet:
            return
        began, moves = perf_counter(), self._out.isatty()
        start, end = ("\r\x1b[2K", "") if moves else ("", "\n")
        try:
            while True:
                await asyncio.sleep(ON_TERMINAL if moves else ELSEWHERE)
                print(f"{start}{self.line(perf_counter() - began)}", end=end, file=self._out, flush=True)
        finally:
            print(f"{start}{self.line(perf_counter() - began)}", file=self._out, flush=True)
