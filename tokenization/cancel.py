"""How whoever reads media learns that nobody wants the result any more."""

import io
from collections.abc import Callable

# Called between items, frames, packets and blocks of a file; raises Cancelled.
Check = Callable[[], None]


class Cancelled(Exception):
    """The request ended while it was prepared."""


def go_on() -> None:
    """The check of whoever reads to the end."""


class CheckedFile(io.BytesIO):
    """Bytes of which each piece is read only after a check: decoders ask for the next one between two pieces.

    Once a check has raised, the file ends: FFmpeg goes on for a while before the error is seen.
    """

    def __init__(self, data: bytes | memoryview, check: Check) -> None:
        super().__init__(data)
        self._check = check
        self._ended = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self._ended:
            return b""
        self._ended = True
        self._check()
        self._ended = False
        return super().read(size)
