"""This process's stderr while it serves: a thread writes it, and a reader that stops holds nobody up."""

import errno
import io
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO, cast

log = logging.getLogger("pixelferry")

MOST_BYTES = 4 << 20  # that wait for a reader; what comes then is dropped
UNREAD = "its reader did not keep up"
UNWRITTEN = "it could not be written ({}, {})"
LAST_SECONDS = 2.0  # for a reader to take what waits when the process ends


class QueuedStderr(io.TextIOBase):
    """Text that a thread writes to a file descriptor, in order. `write` never waits."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._nbytes = 0  # that wait, those that are being written included
        self._unsaid: dict[str, int] = {}  # lines dropped since the log last said so, by the reason
        self._torn = False  # what was last written did not end with its line
        self._closed = False
        self.dropped = 0  # lines, since the start
        threading.Thread(target=self._run, name="log-writer", daemon=True).start()

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._nbytes + len(data) > MOST_BYTES or self._closed:
                self._drop(data, UNREAD)
            else:
                self._waiting.append(data)
                self._nbytes += len(data)
                self._changed.notify_all()
        return len(text)

    def fileno(self) -> int:
        return self._fd

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def end(self, seconds: float) -> bool:
        """Whether all is written, at most `seconds` from now. What waits then, and what comes later, is dropped."""
        with self._changed:
            done = self._changed.wait_for(lambda: not self._nbytes, seconds)
            self._closed = True
            self._changed.notify_all()
        return done

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
                    return
                data = b"".join(self._waiting)
                self._waiting.clear()
            # The rest of a line that was cut is lost: the next one begins on a line of its own.
            taken, error = _written(self._fd, b"\n" + data if self._torn else data)
            taken -= self._torn
            if taken >= 0:  # a bar that is drawn again and again ends no line either, and is whole
                self._torn = error is not None and taken > 0 and not data.endswith(b"\n", 0, taken)
            with self._changed:
                self._nbytes -= len(data)
                unsaid: dict[str, int] = {}
                if error is not None:
                    self._drop(
                        data[max(0, taken) :], UNWRITTEN.format(os.strerror(error), errno.errorcode.get(error, error))
                    )
                elif not self._waiting:  # it flows again
                    unsaid, self._unsaid = self._unsaid, {}
                self._changed.notify_all()
            for reason, lines in unsaid.items():
                log.warning("%d lines of the log were dropped: %s", lines, reason)

    def _drop(self, data: bytes, reason: str) -> None:
        lines = max(1, data.count(b"\n"))
        self.dropped += lines
        self._unsaid[reason] = self._unsaid.get(reason, 0) + lines


@contextmanager
def queued_stderr() -> Iterator[QueuedStderr]:
    """In the place of `sys.stderr`. What waits at the end has LAST_SECONDS; after that nothing is written any more."""
    own = sys.stderr
    queued = QueuedStderr(own.fileno())
    sys.stderr = cast(TextIO, queued)
    try:
        yield queued
    finally:
        if queued.end(LAST_SECONDS):
            sys.stderr = own


def _written(fd: int, data: bytes) -> tuple[int, int | None]:
    """How many bytes were taken, however long a reader let them wait; the errno that ended it, None of all of them."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        return len(data) - len(view), error.errno or errno.EIO
    return len(data), None
