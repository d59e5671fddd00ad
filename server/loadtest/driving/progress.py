"""How far a run is: one line that moves on a terminal, a line now and then elsewhere."""

import asyncio
from collections import deque
from statistics import median
from time import perf_counter
from typing import TextIO

from server.loadtest.results.measures import Record

ON_TERMINAL, ELSEWHERE = 0.5, 10.0  # seconds between two lines
WINDOW = 5.0  # seconds that rates look back
LATEST = 200  # requests that the median looks back


class ProgressLine:
    """Counts what happens and shows it."""

    def __init__(self, out: TextIO, *, quiet: bool = False) -> None:
        self._out = out
        self._quiet = quiet
        self._sent = self._ended = self._errors = 0
        self._tokens: deque[tuple[float, int]] = deque()
        self._ttfts: deque[float] = deque(maxlen=LATEST)
        self.label = ""

    def sent(self) -> None:
        self._sent += 1

    def ended(self, record: Record) -> None:
        self._ended += 1
        self._errors += record.error is not None
        self._tokens.append((perf_counter(), record.output_tokens or 0))
        if record.ttft is not None:
            self._ttfts.append(record.ttft)

    def line(self, elapsed: float) -> str:
        """What is known now."""
        now = perf_counter()
        while self._tokens and self._tokens[0][0] < now - WINDOW:
            self._tokens.popleft()
        seconds = max(0.001, min(WINDOW, elapsed))
        rate, tokens = len(self._tokens) / seconds, sum(n for _, n in self._tokens) / seconds
        ttft = f", ttft p50 {median(self._ttfts) * 1000:.0f} ms" if self._ttfts else ""
        return (
            f"{self.label}{elapsed:6.1f} s  {self._ended} done, {self._sent - self._ended} in flight, "
            f"{self._errors} errors, {rate:.1f} req/s, {tokens:.0f} tok/s{ttft}"
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
