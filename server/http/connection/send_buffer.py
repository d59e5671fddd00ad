"""Bytes that a connection's client has not taken yet: kept without waiting, counted, bounded and timed.

Whoever writes an answer never waits for its reader. So a request ends when its work is done, and what a slow reader
costs is bytes in its send buffer, which lie in no other place.
"""

import asyncio
import fcntl
import socket
import struct
import termios
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

CLOSE, CLOSE_WAIT = 7, 8  # states of a TCP connection, as include/net/tcp_states.h of Linux numbers them
PIECE = 1 << 16  # bytes handed to the kernel at once
TICK_SECONDS = 0.5  # how often the clock is set, and so how exact a deadline is


class Clock:
    """`now` in seconds, by which connections are measured. It stands still while this process does.

    A stopped or starved server has read nothing of what came meanwhile: no client's fault.
    """

    def __init__(self, read: Callable[[], float] = time.monotonic) -> None:
        self.now = 0.0
        self._read = read
        self._last = read()

    def tick(self) -> None:
        last, self._last = self._last, self._read()
        self.now += min(self._last - last, 2 * TICK_SECONDS)


class Unread:
    """The bytes in all send buffers of one server. Whose client has taken nothing for longest gives way to others."""

    def __init__(self, limit: int, seconds: float, clock: Clock) -> None:
        """limit: bytes of all together; seconds: how long a client may take nothing of what there is for it."""
        self.total = 0
        self._limit = limit
        self._seconds = seconds
        self.clock = clock
        self.due: dict[SendBuffer, float] = {}  # of those that wait for their client, in the order of these times

    def add(self, nbytes: int) -> None:
        self.total += nbytes
        while self.total > self._limit and self.due:
            next(iter(self.due)).connection.cut("unread_full")

    def wait(self, one: "SendBuffer") -> None:
        """Its client has just taken something, or the first bytes begin to wait."""
        self.due.pop(one, None)
        self.due[one] = self.clock.now + self._seconds

    def forget(self, one: "SendBuffer") -> None:
        self.due.pop(one, None)


class BufferedConnection(Protocol):
    """What a send buffer tells its connection."""

    def read_on(self, wanted: bool | None = None) -> None: ...
    def was_heard(self) -> None: ...
    def closes(self) -> None: ...
    def cut(self, reason: str) -> None: ...


class SendBuffer(asyncio.Transport):
    """A connection's transport as uvicorn sees it: write() keeps what the kernel does not take, close() waits."""

    def __init__(self, transport: asyncio.Transport, unread: Unread, connection: BufferedConnection) -> None:
        super().__init__()
        self.connection = connection
        self.held = 0  # bytes that the kernel has not taken
        self.ending = False  # nothing more is read from it or written to it
        self._transport = transport
        self._unread = unread
        self._pieces: deque[memoryview] = deque()
        self._below = 0  # bytes that the transport itself kept when it was last looked at
        self._behind = 0  # and those that the kernel kept
        self._full = False  # the kernel takes no more now

    def open(self) -> None:
        """From now on the transport says so at the first byte that is not taken, and may do so at once."""
        self._transport.set_write_buffer_limits(high=1)

    def write(self, data: Any) -> None:
        if self.ending or not data:
            return
        if not self._full and len(data) <= PIECE:
            self._transport.write(data)
            return
        self._pieces.append(memoryview(data))
        self._hold(len(data))
        self._pump()

    def pause_writing(self) -> None:
        """The transport keeps bytes itself."""
        self._full, self._below = True, self._transport.get_write_buffer_size()
        self._behind = self._in_kernel()
        self._unread.wait(self)
        self._hold(self._below)

    def resume_writing(self) -> None:
        """It keeps none any more."""
        self._full = False
        self._hold(-self._below)
        self._below = 0
        self._unread.forget(self)
        self._pump()
        if self.ending and not self._pieces:  # later: the transport is in the middle of saying so
            asyncio.get_running_loop().call_soon(self._transport.close)
            self.connection.closes()
        elif not self.held:
            self.connection.was_heard()

    def close(self) -> None:
        """As soon as the client has taken everything."""
        if self.ending:
            return
        self.ending = True
        if self._pieces:
            self._transport.pause_reading()
            return
        self._transport.close()
        if not self._below:
            self.connection.closes()

    def check(self) -> None:
        """Its client seems to have taken nothing for too long."""
        if self.moved():
            self._unread.wait(self)
        else:
            self.connection.cut("unread")

    def moved(self) -> bool:
        """Whether the client has taken anything since this was asked, or since the transport began to keep bytes.

        The kernel asks for more only once a third of its own buffer is free: what it holds must be looked at, too.
        """
        below, behind = self._transport.get_write_buffer_size(), self._in_kernel()
        moved = below + behind < self._below + self._behind
        self._hold(below - self._below)
        self._below, self._behind = below, behind
        return moved

    def abort(self) -> None:
        self.drop()
        self._transport.abort()

    def drop(self) -> None:
        """Nothing of it will ever be taken."""
        self.ending = True
        self._unread.forget(self)
        self._hold(-self.held)
        self._below = 0
        self._pieces.clear()

    def is_closing(self) -> bool:
        return self.ending or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self.connection.read_on(wanted=False)

    def resume_reading(self) -> None:
        self.connection.read_on(wanted=True)

    def peer_left(self) -> bool:
        """Whether its side has ended the connection, whatever of it is still to be read."""
        sock = self._transport.get_extra_info("socket")
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] if sock.fileno() >= 0 else CLOSE
        return state in (CLOSE, CLOSE_WAIT)

    def _in_kernel(self) -> int:
        """Bytes that the client's side has not confirmed; 0 of a socket that is closed."""
        sock = self._transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return 0
        unconfirmed: int = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return unconfirmed

    def _hold(self, nbytes: int) -> None:
        self.held += nbytes
        self._unread.add(nbytes)

    def _pump(self) -> None:
        while self._pieces and not self._full:
            piece = self._pieces.popleft()
            if len(piece) > PIECE:
                self._pieces.appendleft(piece[PIECE:])
            self._hold(-len(piece[:PIECE]))
            self._transport.write(piece[:PIECE])
