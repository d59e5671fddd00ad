"""A real server of connections on a real socket, an app behind it that says what it is asked to, and raw clients.

The clock of the connections is the test's: `wait` lets it pass. What blocks the loop is measured in processor time.
"""

import asyncio
import contextlib
import gc
import json
import socket
import ssl
import time
import types
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import uvicorn.server
import uvloop

from configs.serve import HttpConfig
from server.http.connection.connections import Connections, Guarded
from server.http.connection.http_server import HttpServer
from server.http.connection.request_body import BodyBudget
from server.http.connection.send_buffer import Clock
from server.http.errors import error_response
from server.http.middleware.request_middleware import RequestMiddleware
from server.metrics import Metrics
from server.request_context import context_of
from server.requests.refusal import Refusal
from tests.hostile.loop_block import own_loop

T = TypeVar("T")

GET = b"GET /length/2 HTTP/1.1\r\nhost: a\r\n\r\n"
CHUNK = b"x" * 1000


def post(nbytes: int) -> bytes:
    """The head of a request with a body of so many bytes."""
    return b"POST /read HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n" % nbytes


class App:
    """`/length/N`: N bytes in one piece; `/stream/N`: N chunks; `/read`: the length of the body."""

    def __init__(self) -> None:
        self.ended: list[str] = []  # paths of requests whose work is done
        self.headers: dict[bytes, bytes] = {}  # of the last of them
        self.body: Any = None  # of the body of the last one that came
        self.waiting = asyncio.Event()  # `/wait` answers when it is set

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        _, what, *rest = scope["path"].split("/")
        self.body = context_of(scope).body
        try:
            if what == "wait":
                await self.waiting.wait()
            n = await self._read(receive) if what == "read" else int(rest[0]) if rest else 2
        except Refusal as error:
            await error_response(error, context_of(scope).id)(scope, receive, send)
            return
        head = [] if what == "stream" else [(b"content-length", b"%d" % n)]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        for i in range(n if what == "stream" else 0):
            if i % 100 == 0:
                await asyncio.sleep(0)  # as where tokens come one by one
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await send({"type": "http.response.body", "body": b"" if what == "stream" else b"y" * n})
        self.ended.append(scope["path"])
        self.headers = dict(scope["headers"])

    async def _read(self, receive: Any) -> int:
        n, more = 0, True
        while more:
            message = await receive()
            n, more = n + len(message.get("body", b"")), message.get("more_body", False)
        return n


class Client:
    """A socket that does what it is told, with TLS where it is given; its receive buffer is small."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.sock = socket.socket()
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.sock.connect(("127.0.0.1", port))
        self.sock.setblocking(False)
        if tls is not None:
            self.sock = tls.wrap_socket(self.sock, server_hostname="localhost", do_handshake_on_connect=False)
        self.loop = asyncio.get_running_loop()

    async def shake_hands(self) -> None:
        if isinstance(self.sock, ssl.SSLSocket):
            await self._ready(self.sock.do_handshake)

    async def say(self, data: bytes) -> None:
        await asyncio.sleep(0)  # what the client itself does is spread over turns of the loop
        while data:
            data = data[await self._ready(lambda: self.sock.send(data[: 1 << 16])) :]  # noqa: B023 - called at once

    async def hear(self, nbytes: int = 1 << 16) -> bytes:
        """What comes next; b"" when the server has closed: then this side closes, too, as clients do."""
        await asyncio.sleep(0)
        heard = b""
        if self.sock.fileno() >= 0:
            with contextlib.suppress(ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError):
                heard = await self._ready(lambda: self.sock.recv(nbytes))
            if not heard:
                self.sock.close()
        return heard

    async def _ready(self, act: Callable[[], T]) -> T:
        """What `act` gives once the socket lets it."""
        while True:
            try:
                return act()
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                await asyncio.sleep(0.0005)

    async def answer(self) -> tuple[int, Any]:
        """Status and JSON, or length, of one answer with a Content-Length."""
        text = b""
        while b"\r\n\r\n" not in text:
            more = await self.hear()
            assert more, f"closed after {text!r}"
            text += more
        head, _, body = text.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        got = len(body)
        while got < length:
            more = await self.hear(min(1 << 16, length - got))
            assert more, f"closed after {got} of {length} bytes"
            got, body = got + len(more), (body + more)[:4096]
        return int(head.split()[1]), json.loads(body) if body[:1] == b"{" else got

    async def code(self) -> tuple[int, str]:
        """Status and code of an error, after which the connection is closed."""
        status, body = await self.answer()
        assert await self.hear() == b"", "it stays open"
        return status, body["error"]["code"]


class Counted(Connections):
    """Knows how many came."""

    entered = 0

    def enter(self, one: Guarded) -> bool:
        self.entered += 1
        return super().enter(one)


# As asyncio, where uvicorn's shutdown waits for tenths of a second.
BRIEF = types.SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(min(seconds, 0.001))})


class Ended(HttpServer):
    """Ends when it is told to, where uvicorn looks ten times a second whether it was."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.told_to_end = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.told_to_end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(uvicorn.server, "asyncio", BRIEF)
            await super().shutdown(sockets)


class Serving:
    """What a test sees of the server."""

    def __init__(
        self, config: HttpConfig, port: int, connections: Counted, app: App, metrics: Metrics,
        tls: ssl.SSLContext | None,
    ) -> None:  # fmt: skip
        self.config, self.port, self.connections, self.app, self.metrics = config, port, connections, app, metrics
        self.budget = BodyBudget(config, connections.clock)
        self.server: HttpServer
        self._clients: list[Client] = []
        self._tls = tls

    @property
    def unread(self) -> int:
        return self.connections.unread.total

    def rejected(self, reason: str) -> float:
        value = self.metrics.registry.get_sample_value("pixelferry:mm_rejected_total", {"reason": reason})
        return value or 0.0

    async def client(self, *says: bytes) -> Client:
        """A new connection that the server knows of, and what it says first."""
        before = self.connections.entered
        client = Client(self.port, self._tls)
        self._clients.append(client)
        await client.shake_hands()
        await until(lambda: self.connections.entered > before)
        for data in says:
            await client.say(data)
        return client

    async def wait(self, seconds: float) -> None:
        """Let the connections' clock pass, once everything that was sent is read."""
        await settled()
        self.connections.clock.now += seconds
        self.connections.tick()

    def close(self) -> None:
        for client in self._clients:
            client.sock.close()


async def until(true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline, "it did not come about"
        await asyncio.sleep(0.001)


async def settled() -> None:
    """What is on its way over the loopback is there, and has been read."""
    for _ in range(5):
        await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def _running(config: HttpConfig, tls: ssl.SSLContext | None) -> AsyncIterator[Serving]:
    metrics, connections, app = Metrics("tiny", "1"), Counted(config, Clock(lambda: 0.0)), App()
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as sock:
        serving = Serving(config, sock.getsockname()[1], connections, app, metrics, tls)
        whole: Any = RequestMiddleware(app, metrics, serving.budget)
        server = serving.server = Ended(whole, config, connections, metrics)
        task = asyncio.create_task(server.serve(sockets=[sock]))
        await until(lambda: server.started)
        try:
            yield serving
        finally:
            serving.close()
            server.told_to_end.set()
            await asyncio.wait_for(task, 60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What a server shows, and how a client of one version asks it."""

    cert: Path
    key: Path
    version: ssl.TLSVersion

    def client(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.cert))
        context.minimum_version = context.maximum_version = self.version
        return context


def serve(
    scenario: Callable[[Serving], Awaitable[None]], max_body: int = 1 << 24, *, tls: Tls | None = None,
    block: float = 0.05, **bounds: Any,
) -> None:  # fmt: skip
    """Run a scenario, in which nothing may block the loop for `block` seconds of processor time."""
    config = HttpConfig(max_body_bytes=max_body, **bounds)
    if tls is not None:
        config = msgspec.structs.replace(config, ssl_certfile=tls.cert, ssl_keyfile=tls.key)

    async def run() -> None:
        async with _running(config, tls.client() if tls else None) as serving, own_loop() as longest:
            await asyncio.wait_for(scenario(serving), 100)
        longest.assert_within(block)

    gc.collect()
    gc.freeze()  # what tests have loaded and made is no work of a server; it stays so: to look at it again costs most
    uvloop.run(run())
