"""Typed messages over one inherited socket: a blocking end for children, an asyncio end for the server."""

import asyncio
import math
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, Generic, TypeVar, cast

import msgspec
import numpy as np

MAX_FRAME = 256 << 20  # bytes; a body of 64 MiB in base64 fits with room to spare

_LENGTH = struct.Struct("<I")
_BUFFERED = 1 << 20  # bytes that wait in the server for a slow child before send() waits too
_Message = TypeVar("_Message")


class ChannelClosed(Exception):
    """The peer is gone, or this end was closed."""


class ChannelError(Exception):
    """A frame that this end cannot send or understand: too long, or not the expected type."""


def channel_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends. Neither survives exec unless its descriptor is in pass_fds."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


class _Codec(Generic[_Message]):
    def __init__(self, receives: Any) -> None:
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_to_wire)
        self._decoder = msgspec.msgpack.Decoder(receives, dec_hook=_from_wire)

    def encode(self, message: object) -> tuple[bytes, bytes]:
        body = self._encoder.encode(message)
        if len(body) > MAX_FRAME:
            raise ChannelError(f"a message of {len(body)} bytes exceeds the limit of {MAX_FRAME}")
        return _LENGTH.pack(len(body)), body

    def decode(self, body: bytes | bytearray) -> _Message:
        try:
            return cast(_Message, self._decoder.decode(body))
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ChannelError(f"a message could not be understood: {error}") from None

    @staticmethod
    def length(header: bytes | bytearray) -> int:
        length: int = _LENGTH.unpack(header)[0]
        if length > MAX_FRAME:
            raise ChannelError(f"a message of {length} bytes exceeds the limit of {MAX_FRAME}")
        return length


class Channel(Generic[_Message]):
    """The blocking end. `send` may be called by several threads, `recv` by one at a time."""

    def __init__(self, sock_or_fd: socket.socket | int, receives: Any) -> None:
        """`receives` is the type of incoming messages: a tagged Struct or a union of such."""
        self._sock = socket.socket(fileno=sock_or_fd) if isinstance(sock_or_fd, int) else sock_or_fd
        self._sock.setblocking(True)
        os.set_inheritable(self._sock.fileno(), False)  # else a grandchild would keep the channel open
        self._codec: _Codec[_Message] = _Codec(receives)
        self._sending = threading.Lock()
        self._poll = select.poll()
        self._poll.register(self._sock, select.POLLIN)
        self._frame = bytearray(_LENGTH.size)
        self._got = 0
        self._in_body = False

    def send(self, message: object) -> None:
        """Wait while the peer is slow. Raises ChannelClosed, and ChannelError for a message that cannot be sent."""
        self._send(*self._codec.encode(message))

    def _send(self, header: bytes, body: bytes) -> None:
        parts = [memoryview(header), memoryview(body)]
        with self._sending:
            try:
                while parts:
                    sent = self._sock.sendmsg(parts)
                    while parts and sent >= len(parts[0]):
                        sent -= len(parts.pop(0))
                    if parts:
                        parts[0] = parts[0][sent:]
            except OSError:
                # Also after a part of the frame is out: nothing that follows could be understood.
                self._shut()
                raise ChannelClosed("the peer is gone") from None

    def recv(self, timeout: float | None = None) -> _Message | None:
        """The next message, None after `timeout` s (a partial frame is kept). Raises ChannelClosed and ChannelError."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._got == len(self._frame):
                done, self._got = self._frame, 0
                if self._in_body:
                    self._in_body, self._frame = False, bytearray(_LENGTH.size)
                    return self._codec.decode(done)
                self._in_body, self._frame = True, bytearray(self._codec.length(done))
                continue
            if deadline is not None and not self._poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                return None
            try:
                got = self._sock.recv_into(memoryview(self._frame)[self._got :])
            except OSError:
                got = 0
            if got == 0:
                raise ChannelClosed("the peer is gone")
            self._got += got

    def close(self) -> None:
        """Close this end; a recv() that waits in another thread raises ChannelClosed."""
        self._shut()
        self._sock.close()

    def _shut(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # not connected any more


def send_to_all(channels: Sequence[Channel[Any]], message: object) -> None:
    """Send one message by each of them, encoded once. Raises as Channel.send does, after some of them have it."""
    header, body = channels[0]._codec.encode(message)
    for channel in channels:
        channel._send(header, body)


class AsyncChannel(Generic[_Message]):
    """The asyncio end; raises as Channel does. One task sends and one receives.

    A `send` that is cancelled may tear its frame, so that nothing may follow it; a cancelled `recv` loses nothing.
    """

    def __init__(self, sock: socket.socket, receives: Any) -> None:
        self._sock = sock
        self._codec: _Codec[_Message] = _Codec(receives)
        self._opening: asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]] | None = None
        self._length: int | None = None
        self._closed = False

    async def send(self, message: object, *, large: bool = False) -> None:
        """In slices, so that other tasks have their turns meanwhile; `large`: encoded in a thread, for the same."""
        header, body = await asyncio.to_thread(self._codec.encode, message) if large else self._codec.encode(message)
        _, writer = await self._open()
        part: bytes | memoryview = header + body[:_BUFFERED]
        rest = memoryview(body)[_BUFFERED:]
        while part:
            if self._closed or writer.is_closing():
                raise ChannelClosed("the peer is gone")
            writer.write(part)
            try:
                await writer.drain()
            except OSError:
                raise ChannelClosed("the peer is gone") from None
            part, rest = rest[:_BUFFERED], rest[_BUFFERED:]

    async def recv(self) -> _Message:
        reader, _ = await self._open()
        try:
            if self._length is None:
                self._length = self._codec.length(await reader.readexactly(_LENGTH.size))
            body = await reader.readexactly(self._length)
        except (asyncio.IncompleteReadError, OSError):
            raise ChannelClosed("the peer is gone") from None
        self._length = None
        return self._codec.decode(body)

    def close(self) -> None:
        """Idempotent; must be called on the event loop that used this end."""
        self._closed = True
        if self._opening is None:
            self._sock.close()
        else:
            self._opening.add_done_callback(_close_streams)

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._opening is None:
            if self._closed:
                raise ChannelClosed("this end was closed")
            self._opening = asyncio.ensure_future(self._connect())
        return await asyncio.shield(self._opening)

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(sock=self._sock, limit=_BUFFERED)
        writer.transport.set_write_buffer_limits(high=_BUFFERED)
        return reader, writer


def _close_streams(opening: "asyncio.Task[tuple[asyncio.StreamReader, asyncio.StreamWriter]]") -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result()[1].close()


def _to_wire(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject or value.dtype.kind == "V":
            raise ChannelError(f"an array of {value.dtype} cannot be sent")
        return value.dtype.str, value.shape, np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
    if isinstance(value, PurePath):
        return os.fsencode(value)
    raise ChannelError(f"a {type(value).__name__} cannot be sent")


def _from_wire(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        text, shape, data = value
        dtype = np.dtype(text)
        if dtype.hasobject or dtype.kind == "V":
            raise ChannelError(f"an array of {dtype} cannot be received")
        if len(data) != math.prod(shape) * dtype.itemsize:
            raise ChannelError("an array's bytes do not make up its shape")
        return np.frombuffer(bytearray(data), dtype).reshape(shape)  # a bytearray, so that the array is writable
    if issubclass(kind, PurePath):
        return Path(os.fsdecode(value))
    raise ChannelError(f"a {kind.__name__} cannot be received")
