"""What a connection has to say and its client has not taken: kept without waiting, counted, bounded and timed.

Whoever writes an answer never waits for its reader. So a request ends when its work is done, and what a slow reader
costs is bytes in its outbox, which lie in no other place.
"""

import asyncio
import fcntl
import socket
import struct
import termios
from collections import deque
from typing import Any, Protocol

from server.http.connection.clock import Clock

CLOSE, CLOSE_WAIT = 7, 8  # states of a TCP connection, as include/net/tcp_states.h of Linux numbers them
PIECE = 1 << 16  # bytes handed to the kernel at once


class Unread:
    """The bytes in all outboxes of one server. The client that has taken nothing for longest gives way to others."""

    def __init__(self, limit: int, seconds: float, clock: Clock) -> None:
        """limit: bytes of all together; seconds: how long a client may take nothing of what there is for it."""
        self.total = 0
        self._limit = limit
        self._seconds = seconds
        self._clock = clock
        self._due: dict[Outbox, float] = {}  # of those that wait for their client, in the order of these times

    def add(self, nbytes: int) -> None:
        self.total += nbytes
        while self.total > self._limit and self._due:
            next(iter(self._due)).give_up("unread_full")

    def remove(self, nbytes: int) -> None:
        self.total -= nbytes

    def wait(self, outbox: "Outbox") -> None:
        """Its client has just taken something, or the first bytes begin to wait."""
        self._due.pop(outbox, None)
        self._due[outbox] = self._clock.now + self._seconds

    def forget(self, outbox: "Outbox") -> None:
        self._due.pop(outbox, None)

    def waiting(self) -> "list[Outbox]":
        """Those whose clients seem to have taken nothing for too long."""
        return [one for one, due in self._due.items() if due <= self._clock.now]

    async def drained(self) -> None:
        """Return when every client has taken what there is for it, or was given up."""
        while self.total:
            await asyncio.sleep(0.1)


class Guarded(Protocol):
    """What a connection can be told: by its outbox, and by all connections of its server."""

    spent: float  # seconds that parsing it took, as those count

    def read_on(self, wanted: bool | None = None) -> None: ...
    def said_all(self) -> None: ...
    def cut(self, reason: str) -> None: ...
    def abort(self) -> None: ...
    def give_way(self) -> None: ...
    def rested(self) -> None: ...
    def head_overdue(self) -> None: ...
    def check_body(self) -> None: ...
    def turn(self) -> None: ...


class Outbox(asyncio.Transport):
    """A connection's transport as uvicorn sees it: write() keeps what the kernel does not take, close() waits."""

    def __init__(self, transport: asyncio.Transport, unread: Unread, guard: Guarded) -> None:
        super().__init__()
        self._transport = transport
        self._unread = unread
        self._guard = guard
        self._pieces: deque[memoryview] = deque()
        self._kept = 0  # bytes of those
        self._below = 0  # bytes that the transport itself kept when it was last looked at
        self._behind = 0  # and those that the kernel kept
        self._full = False  # the kernel takes no more now
        self._ending = False

    def open(self) -> None:
        """From now on the transport says so at the first byte that is not taken, and may do so at once."""
        self._transport.set_write_buffer_limits(high=1)

    def write(self, data: Any) -> None:
        if self._ending or not data:
            return
        if not self._full and len(data) <= PIECE:
            self._transport.write(data)
            return
        self._pieces.append(memoryview(data))
        self._kept += len(data)
        self._unread.add(len(data))
        self._pump()

    def pause_writing(self) -> None:
        """The transport keeps bytes itself."""
        self._full, self._below = True, self._transport.get_write_buffer_size()
        self._behind = self._in_kernel()
        self._unread.wait(self)
        self._unread.add(self._below)

    def resume_writing(self) -> None:
        """It keeps none any more."""
        self._full = False
        self._unread.remove(self._below)
        self._below = 0
        self._unread.forget(self)
        self._pump()
        if self._ending and not self._pieces:  # later: the transport is in the middle of telling us
            asyncio.get_running_loop().call_soon(self._transport.close)
            self._guard.said_all()
        elif not self.held:
            self._guard.read_on()

    @property
    def held(self) -> int:
        """Bytes that the kernel has not taken."""
        return self._kept + self._below

    def moved(self) -> bool:
        """Whether the client has taken anything since this was asked, or since the transport began to keep bytes.

        The kernel asks for more only once a third of its own buffer is free: what it holds must be looked at, too.
        """
        below, behind = self._transport.get_write_buffer_size(), self._in_kernel()
        moved = below + behind < self._below + self._behind
        self._unread.remove(self._below - below)
        self._below, self._behind = below, behind
        return moved

    def close(self) -> None:
        """As soon as the client has taken everything; until then nothing more is read from it or written to it."""
        if self._ending:
            return
        self._ending = True
        if self._pieces:
            self._transport.pause_reading()
            return
        self._transport.close()
        if not self._below:
            self._guard.said_all()

    def check(self) -> None:
        """Its client seems to have taken nothing for too long."""
        if self.moved():
            self._unread.wait(self)
        else:
            self.give_up("unread")

    def give_up(self, reason: str) -> None:
        self._guard.cut(reason)

    def abort(self) -> None:
        self.drop()
        self._transport.abort()

    def drop(self) -> None:
        """Nothing of it will ever be taken."""
        self._ending = True
        self._unread.forget(self)
        self._unread.remove(self.held)
        self._kept = self._below = 0
        self._pieces.clear()

    def is_closing(self) -> bool:
        return self._ending or self._transport.is_closing()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def pause_reading(self) -> None:
        self._guard.read_on(wanted=False)

    def resume_reading(self) -> None:
        self._guard.read_on(wanted=True)

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

    def _pump(self) -> None:
        while self._pieces and not self._full:
            piece = self._pieces.popleft()
            if len(piece) > PIECE:
                self._pieces.appendleft(piece[PIECE:])
            self._kept -= len(piece[:PIECE])
            self._unread.remove(len(piece[:PIECE]))
            self._transport.write(piece[:PIECE])
