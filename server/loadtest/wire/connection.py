"""HTTP/1.1 over asyncio and httptools: connections that are kept, and the time at which each piece of an answer came.

The load test must not be what is measured. httptools is a parser in C; a client library between it and the socket
takes many times as long for each chunk, and tells no times of its own.
"""

import asyncio
import ssl
from collections import Counter
from collections.abc import Mapping
from time import perf_counter
from typing import cast
from urllib.parse import urlsplit

import anyio
import httptools

MOST_HEAD = 64 * 1024  # bytes of an answer's heads, and of what its chunks are framed by beyond FRAMING
FRAMING = 8  # of these for each byte of a body: a chunk of one byte has five
MOST_BODY = 16 << 20  # bytes of an answer
CONNECT_SECONDS = 30.0


class ConnectionFailed(Exception):
    """No connection, or one that broke; the message is short enough to be counted."""


class Response:
    """An answer that is kept as it comes. Who reads it piece by piece, or looks at its headers, extends it."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: list[bytes] = []  # of the body

    def head(self, status: int, headers: dict[str, str]) -> None:
        self.status = status

    def body(self, data: bytes, at: float) -> None:
        """A piece of the body, which came `at`, by perf_counter."""
        self.parts.append(data)


class Connection(asyncio.Protocol):
    """One socket with one request on it at a time."""

    def __init__(self, most_body: int = MOST_BODY) -> None:
        self._most_body = most_body
        self._transport: asyncio.Transport | None = None
        self._aborted = self.ended_by_server = False
        self._done: asyncio.Future[bool] | None = None  # None, or done: nobody waits for an answer
        self._begin(Response())

    def _begin(self, response: Response) -> None:
        self._parser, self._response = httptools.HttpResponseParser(self), response
        self._taken = self._body = 0  # bytes of this answer: all that came, and of its body
        self._headers: dict[str, str] = {}
        self._at = 0.0
        self._endless = False  # its body ends with the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    @property
    def open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes, response: Response) -> bool:
        """Send a request and hand its answer to the response; whether the connection may be used again.

        Raises ConnectionFailed.
        """
        self._begin(response)
        self._done = asyncio.get_running_loop().create_future()
        if self._transport is None or not self.open:
            raise ConnectionFailed("connection closed")
        self._transport.write(request)
        return await self._done

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._aborted = True
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.abort()  # bytes that nobody asked for
            return
        self._at = perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(ConnectionFailed(str(error.__context__ or error)[:80]))
        self._taken += len(data)
        if self._body > self._most_body:
            self._end(ConnectionFailed(f"an answer of more than {self._most_body >> 20} MiB"))
        elif self._taken > MOST_HEAD + (1 + FRAMING) * self._body:
            self._end(ConnectionFailed(f"more than {MOST_HEAD >> 10} KiB of headers or chunk framing"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended_by_server = not self._aborted
        whole = self._endless and exc is None
        self._end(False if whole else ConnectionFailed("connection closed" if exc is None else type(exc).__name__))

    def _end(self, how: bool | ConnectionFailed) -> None:
        """The answer is over: whether the connection may be used again, or why it is none."""
        if self._done is not None and not self._done.done():
            if isinstance(how, bool):
                self._done.set_result(how)
            else:
                self._done.set_exception(how)
        if how is not True:
            self.abort()

    # httptools calls these.

    def on_message_begin(self) -> None:
        self._headers = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:
            self._endless = not {"content-length", "transfer-encoding"} & set(self._headers)
            self._response.head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        self._body += len(data)
        if self._body <= self._most_body:
            self._response.body(data, self._at)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() >= 200:
            self._end(self._parser.should_keep_alive())


class ConnectionPool:
    """Connections to one address. What is idle is used first, the one that was used last before others."""

    def __init__(self, url: str, *, insecure: bool = False, most_body: int = MOST_BODY) -> None:
        """url: http://host:port/prefix; most_body: bytes of one answer; a longer one fails. Raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address")
        secure = parts.scheme == "https"
        self.host, self.port = parts.hostname, parts.port or (443 if secure else 80)
        self._prefix = parts.path.rstrip("/")
        self._most_body = most_body
        self._tls = ssl.create_default_context() if secure else None
        if self._tls is not None and insecure:
            self._tls.check_hostname, self._tls.verify_mode = False, ssl.CERT_NONE
        self._idle: list[Connection] = []
        self.opened = 0
        self.closed: Counter[str] = Counter()  # connections that the server ended, by when it did

    def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> bytes:
        """The bytes of a request; a body is JSON."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        host = host if self.port == (443 if self._tls else 80) else f"{host}:{self.port}"
        lines = [f"{method} {self._prefix}{path} HTTP/1.1", f"Host: {host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return "\r\n".join([*lines, "\r\n"]).encode("latin-1") + body

    async def exchange(self, request: bytes, response: Response) -> None:
        """One request and its answer. Raises ConnectionFailed.

        It is written once: whether a server that closed the connection had begun with it, nobody here can know.
        """
        connection, keep = await self._take(), False
        try:
            keep = await connection.exchange(request, response)
            if not keep:
                self.closed["behind an answer"] += 1
        except ConnectionFailed:
            if connection.ended_by_server:
                self.closed["under a request"] += 1
            raise
        finally:
            if keep and connection.open:
                self._idle.append(connection)
            else:
                connection.abort()

    async def _take(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                return connection
            self.closed["idle"] += 1
        opening = asyncio.get_running_loop().create_connection(
            lambda: Connection(self._most_body), self.host, self.port, ssl=self._tls
        )
        try:
            with anyio.fail_after(CONNECT_SECONDS):
                _, connection = await opening
        except OSError as error:
            raise ConnectionFailed(f"cannot connect: {type(error).__name__}") from None
        self.opened += 1
        return connection

    def close(self) -> None:
        """Close all that are idle."""
        while self._idle:
            self._idle.pop().abort()
