"""uvicorn's server, with a guard around each of its connections: their clock ticks, and it takes few at once."""

import asyncio
import contextlib
import itertools
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from configs.serve import HttpConfig
from server.http.connection.bad_requests import BadRequests
from server.http.connection.connections import Connections
from server.http.connection.guard import PIECE, Guard, WholeLines
from server.http.connection.send_buffer import SendBuffer
from server.metrics import Metrics

log = logging.getLogger("pixelferry.http")

BACKLOG = 2048  # connections that the kernel keeps until they are accepted
ACCEPTED_AT_ONCE = 64  # between two looks at everything else, so that the bound on connections is never far behind
AGAIN_SECONDS = 0.5  # after a connection could not be accepted
LAST_BYTES_SECONDS = 2  # for answers that are complete and not yet sent
_NEVER = 86400  # seconds: a guard ends what rests, and counts from when an answer is taken


class Opening(asyncio.Transport):
    """A connection whose TLS is not agreed yet: it can be closed, and nothing else is done with it."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self._sock = sock

    def abort(self) -> None:
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # whoever waits for it hears so


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: what a signal means is decided by whoever runs it."""

    def __init__(self, app: ASGIApp, config: HttpConfig, connections: Connections, metrics: Metrics) -> None:
        bad_requests = BadRequests(metrics)

        def guarded(
            config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any],
            _loop: asyncio.AbstractEventLoop | None = None,
        ) -> Guard:  # fmt: skip
            """A connection, as uvicorn makes one of its own."""
            guard = Guard(connections, bad_requests)
            guard.http = http = H11Protocol(config, server_state, {**app_state, "guard": guard}, _loop)
            http.conn._receive_buffer = WholeLines()  # nothing was received yet
            return guard

        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=guarded,  # type: ignore[arg-type]  # uvicorn calls it as it would a class
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=_NEVER,
                timeout_graceful_shutdown=LAST_BYTES_SECONDS,
                h11_max_incomplete_event_size=config.max_head_bytes + PIECE,  # the guard's own bound comes first
                backlog=ACCEPTED_AT_ONCE,  # asyncio's number of connections in a row, too
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
            )
        )
        self._connections = connections
        self._tasks: list[asyncio.Task[None]] = []  # that last as long as the server
        self._opening: set[asyncio.Task[None]] = set()

    def take_certificate(self) -> None:
        """The files of the certificate as they are now, for connections that come from now on. Raises OSError."""
        config = self.config
        if config.loaded and config.ssl is not None and config.ssl_certfile is not None:
            config.ssl.load_cert_chain(config.ssl_certfile, config.ssl_keyfile)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([] if self.config.is_ssl else sockets)
        self._tasks.append(asyncio.create_task(self._connections.keep_time()))
        for sock in sockets or []:
            sock.listen(BACKLOG)
            if self.config.is_ssl:
                sock.setblocking(False)
                self._tasks.append(asyncio.create_task(self._accept(sock)))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in [*self._tasks, *self._opening]:
            task.cancel()
        await super().shutdown(sockets)

    async def _accept(self, listener: socket.socket) -> None:
        """With TLS: asyncio tells of a connection once that is agreed, and it counts from here on."""
        for n in itertools.count(1):
            try:
                sock, _ = await asyncio.get_running_loop().sock_accept(listener)
            except OSError as error:
                log.error("a connection could not be accepted: %s", error.strerror)
                await asyncio.sleep(AGAIN_SECONDS)
                continue
            task = asyncio.create_task(self._open(sock))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            if n % ACCEPTED_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def _open(self, sock: socket.socket) -> None:
        make: Any = self.config.http_protocol_class
        guard: Guard = make(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        guard.sends = SendBuffer(Opening(sock), self._connections.unread, guard)
        guard.fits = self._connections.enter(guard)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: guard, sock, ssl=self.config.ssl)
        except OSError:  # nothing was agreed, or the client is gone
            self._connections.leave(guard)
