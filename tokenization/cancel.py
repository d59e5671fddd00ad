"""A check that readers of media call: it raises once the request has ended."""

import io
from collections.abc import Callable

from tokenization.chat.errors import ChatError

# Called between items, frames, packets and blocks of a file; raises Cancelled.
Check = Callable[[], None]


class Cancelled(Exception):
    """The request ended while it was prepared."""


def go_on() -> None:
    """A check that never raises."""


class CheckedFile(io.BytesIO):
    """A file that calls the check before each read: decoders read between two pieces of work.

    Once a check has raised, the file ends: FFmpeg goes on for a while before the error is seen.
    """

    def __init__(self, data: bytes | memoryview, check: Check, most: int = 1 << 62) -> None:
        """most: reads; a further one raises ChatError."""
        super().__init__(data)
        self._check = check
        self._left = most
        self._ended = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        self._left -= 1
        if self._left < 0:
            raise ChatError("the file is cut into more parts than its bytes need")
        self._check()
        self._ended = False
        return super().read(size)
