"""What is no HTTP is counted, and named with its client's address, a few times a minute."""

import asyncio
import logging
import time
from typing import Any

import pytest
import uvicorn

from configs.serve import HttpConfig
from server.http.connection.bad_requests import BadRequests
from server.http.connection.connections import LEAST_READ, MOST_UNPARSED, READ, Connections
from server.http.connection.guard import Guard
from server.http.connection.http_server import HttpServer
from server.http.connection.request_body import BodyBudget
from server.http.middleware.request_middleware import RequestMiddleware
from server.logs.line_bound import LINES
from server.metrics import MALFORMED, Metrics
from server.request_context import context_of
from tests.tables import each_of


async def app(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


class Transport(asyncio.Transport):
    """One connection from a client of the test's network."""

    def __init__(self) -> None:
        super().__init__({"peername": ("203.0.113.9", 5555), "sockname": ("127.0.0.1", 80)})
        self.written = b""
        self.ended = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self.ended = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """It is never full."""

    def is_closing(self) -> bool:
        return self.ended


def spoken(metrics: Metrics, *connections: bytes, app: Any = app, busy: float = 0) -> list[Transport]:
    """What connections that begin with these bytes are answered; the loop is busy for so long once it has read them."""

    async def scenario() -> list[Transport]:
        all_of_them = Connections(HttpConfig())
        whole = RequestMiddleware(app, metrics, BodyBudget(HttpConfig(), all_of_them.clock))
        config = HttpServer(whole, HttpConfig(), all_of_them, metrics).config
        config.load()
        state = uvicorn.server.ServerState()
        make: Any = config.http_protocol_class
        transports = []
        for data in connections:
            protocol = make(config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop())
            transports.append(Transport())
            protocol.connection_made(transports[-1])
            protocol.get_buffer(-1)[: len(data)] = data
            protocol.buffer_updated(len(data))
        time.sleep(busy)
        while all_of_them.unparsed:  # a turn ends early on a busy machine
            await asyncio.sleep(0)
        for _ in range(3):
            await asyncio.sleep(0)
        while state.tasks:
            await asyncio.sleep(0)
        for http in list(state.connections):
            http.connection_lost(None)
        return transports

    return asyncio.run(scenario())


@each_of("garbage", [b"\x16\x03\x01\x02\x00secret", b"GET\r\n\r\n", b"\x00" * 5000, b"GET / HTTX/1.1\r\n\r\n"])
def test_the_line_names_the_client_and_quotes_nothing(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics("tiny", "1")
    (transport,) = spoken(metrics, garbage)
    assert transport.written.startswith(b"HTTP/1.1 400 ") and transport.ended
    (record,) = (record for record in caplog.records if record.name == "pixelferry.http")
    assert record.getMessage() == "not a valid HTTP request"
    assert record.fields == {"client": "203.0.113.9:5555"}  # type: ignore[attr-defined]
    assert f'route="{MALFORMED}",status="400"}} 1.0' in metrics.render().decode()


@pytest.mark.usefixtures("kept_logging")
def test_a_flood_leaves_a_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # as server/logs/setup.py has it
    metrics = Metrics("tiny", "1")
    spoken(metrics, *[b"garbage secret\r\n\r\n"] * 300)
    assert len(caplog.records) == LINES and "secret" not in caplog.text
    assert f'route="{MALFORMED}",status="400"}} 300.0' in metrics.render().decode()


def test_a_request_begins_with_its_first_byte() -> None:
    """And not when the loop has time for it."""
    ages: list[float] = []

    async def timed(scope: Any, receive: Any, send: Any) -> None:
        ages.append(time.monotonic() - context_of(scope).received)
        await app(scope, receive, send)

    spoken(Metrics("tiny", "1"), b"GET / HTTP/1.1\r\n", app=timed)
    assert ages == [], "half a head is no request"
    get = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"
    spoken(Metrics("tiny", "1"), get, app=timed, busy=0.02)
    assert len(ages) == 1 and ages[0] >= 0.02


def test_a_request_is_answered() -> None:
    (transport,) = spoken(Metrics("tiny", "1"), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert transport.written.startswith(b"HTTP/1.1 204 ")


@each_of(("unparsed", "room"), [(0, READ), (MOST_UNPARSED - 10_000, 10_000), (2 * MOST_UNPARSED, LEAST_READ)])
def test_less_is_read_of_each_where_much_is_unparsed(unparsed: int, room: int) -> None:
    connections = Connections(HttpConfig())
    connections.unparsed = unparsed
    assert len(Guard(connections, BadRequests(Metrics("tiny", "1"))).get_buffer(-1)) == room
