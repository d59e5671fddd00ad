"""What a child writes to its stderr, its libraries included, becomes part of the server's log."""

import asyncio
import os
import sys
from typing import IO

AT_ONCE = 1 << 16  # bytes that are read in one turn of the loop
MOST_LINE = 1 << 20  # bytes of a line that is not whole; a longer one is told in parts


class StderrRelay:
    """Reads the server's end of the pipe while the loop runs, and hands on whole lines."""

    def __init__(self, pipe: IO[bytes], loop: asyncio.AbstractEventLoop) -> None:
        self._pipe = pipe
        self._loop = loop
        self._begun = b""  # a line that is not whole
        os.set_blocking(pipe.fileno(), False)
        loop.add_reader(pipe.fileno(), self._read)

    def close(self) -> None:
        """The child is gone: tell what it wrote last. Processes that it left behind are not heard any more."""
        while self._read():
            pass
        if self._begun:
            _tell(self._begun + b"\n")
            self._begun = b""
        if not self._pipe.closed:
            self._stop()

    def _read(self) -> bool:
        """Whether there may be more now."""
        if self._pipe.closed:
            return False
        try:
            data = os.read(self._pipe.fileno(), AT_ONCE)
        except BlockingIOError:
            return False
        if not data:
            self._stop()
            return False
        lines, newline, self._begun = (self._begun + data).rpartition(b"\n")
        if len(self._begun) > MOST_LINE:
            lines, newline, self._begun = lines + newline + self._begun, b"\n", b""
        if newline:
            _tell(lines + newline)
        return True

    def _stop(self) -> None:
        self._loop.remove_reader(self._pipe.fileno())
        self._pipe.close()


def _tell(lines: bytes) -> None:
    sys.stderr.write(lines.decode("utf-8", "backslashreplace"))
