"""uvicorn's server, with a guard around each of its connections: their clock ticks, and it takes few at once."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from configs.serve import HttpConfig
from server.http.connection.clock import TICK_SECONDS
from server.http.connection.connections import Connections
from server.http.connection.guard import GUARD, PIECE, Guard
from server.http.connection.strays import Strays
from server.metrics import Metrics

BACKLOG = 2048  # connections that the kernel keeps until they are accepted
ACCEPTED_AT_ONCE = 64  # between two looks at everything else, so that the bound on connections is never far behind
LAST_BYTES_SECONDS = 2  # for answers that are complete and not yet sent
_TICKS = int(TICK_SECONDS / 0.1)  # uvicorn's are ten a second
_NEVER = 86400  # seconds: a guard ends what rests, and counts from when an answer is taken


class Guards:
    """Makes the connections of one server, which share their bounds, their counters and their lines in the log."""

    def __init__(self, connections: Connections, metrics: Metrics) -> None:
        self._connections = connections
        self._strays = Strays(metrics)

    def __call__(
        self, config: uvicorn.Config, server_state: ServerState, app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> Guard:  # fmt: skip
        """As uvicorn makes one of its own."""
        guard = Guard(self._connections, self._strays)
        guard.http = H11Protocol(config, server_state, {**app_state, GUARD: guard}, _loop)
        return guard


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: what a signal means is decided by whoever runs it."""

    def __init__(self, app: ASGIApp, config: HttpConfig, connections: Connections, metrics: Metrics) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                loop="none",
                http=Guards(connections, metrics),  # type: ignore[arg-type]  # uvicorn calls it as it would a class
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=ACCEPTED_AT_ONCE,  # asyncio's number of connections in a row, too
                timeout_keep_alive=_NEVER,
                timeout_graceful_shutdown=LAST_BYTES_SECONDS,
                h11_max_incomplete_event_size=config.max_head_bytes + PIECE,  # the guard's own bound comes first
                ssl_certfile=config.ssl_certfile,
                ssl_keyfile=config.ssl_keyfile,
            )
        )
        self._connections = connections

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for sock in sockets or []:
            sock.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        if counter % _TICKS == 0:
            self._connections.tick()
        return await super().on_tick(counter)
