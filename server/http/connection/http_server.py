"""uvicorn's server, with our connections: their clock ticks, and it takes few at once from a long queue."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn

from server.http.connection.clock import TICK_SECONDS
from server.http.connection.connections import Connections

BACKLOG = 2048  # connections that the kernel keeps until they are accepted
ACCEPTED_AT_ONCE = 64  # between two looks at everything else, so that the bound on connections is never far behind
_TICKS = int(TICK_SECONDS / 0.1)  # uvicorn's are ten a second


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: what a signal means is decided by whoever runs it."""

    def __init__(self, config: uvicorn.Config, connections: Connections) -> None:
        config.backlog = ACCEPTED_AT_ONCE  # asyncio's number of connections in a row, too
        super().__init__(config)
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
