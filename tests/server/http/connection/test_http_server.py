"""The clock of the connections ticks with the server, and the kernel's queue is long while few are taken at once."""

import asyncio
import socket

from server.http.connection.clock import TICK_SECONDS
from server.http.connection.http_server import ACCEPTED_AT_ONCE, BACKLOG
from tests.server.http.connection.serving import GET, Serving, serve, until


def test_the_clock_ticks_as_often_as_it_says() -> None:
    async def scenario(s: Serving) -> None:
        ticks = 0

        def tick() -> None:
            nonlocal ticks
            ticks += 1

        s.connections.tick = tick  # type: ignore[method-assign]
        for counter in range(50):
            assert not await s.server.on_tick(counter)
        assert ticks == 50 * 0.1 / TICK_SECONDS

    serve(scenario)


def test_more_than_are_taken_at_once_wait_in_the_kernel() -> None:
    async def scenario(s: Serving) -> None:
        n = 3 * ACCEPTED_AT_ONCE
        assert BACKLOG > n
        socks = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(n)]  # the loop takes none meanwhile
        assert s.connections.entered == 0
        turns = [s.connections.entered]
        while s.connections.entered < n:
            await asyncio.sleep(0)
            turns.append(s.connections.entered)
        assert max(b - a for a, b in zip(turns, turns[1:], strict=False)) <= ACCEPTED_AT_ONCE
        for sock in socks:
            sock.close()
        await until(lambda: s.connections.n == 0)
        assert await (await s.client(GET)).answer() == (200, 2)

    serve(scenario)
