"""The clock of the connections ticks with the server, and the kernel's queue is long while few are taken at once."""

import asyncio
import http.client
import io
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest

from server.http.connection import connections
from server.http.connection.http_server import ACCEPTED_AT_ONCE, BACKLOG
from server.http.connection.send_buffer import TICK_SECONDS, Clock
from tests.server.http.connection.serving import CHUNK, GET, Serving, Tls, serve, until
from tests.tables import each_of


def test_the_clock_ticks_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "TICK_SECONDS", 0.05)

    async def scenario(s: Serving) -> None:
        ticks: list[float] = []
        s.connections.tick = lambda: ticks.append(time.monotonic())  # type: ignore[method-assign]
        await until(lambda: len(ticks) >= 3)
        assert ticks[2] - ticks[0] >= 2 * 0.05 * 0.9

    serve(scenario)


def test_the_clock_stands_still_while_the_server_does() -> None:
    """Time passes for connections only while the server can read what they send."""
    machine = 100.0
    clock = Clock(lambda: machine)
    for _ in range(4):
        machine += TICK_SECONDS
        clock.tick()
    assert clock.now == 4 * TICK_SECONDS
    machine += 3600
    clock.tick()
    assert clock.now == 6 * TICK_SECONDS


@pytest.mark.process
def test_who_agrees_on_no_tls_is_counted_gives_way_and_has_its_time(certificate: tuple[Path, Path]) -> None:
    """3,000 of them took every descriptor, beside a bound of 100."""
    part = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"  # of a ClientHello

    async def scenario(s: Serving) -> None:
        silent = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(20)]
        silent[-1].sendall(part)
        await until(lambda: s.connections.entered == 20)
        await until(lambda: s.connections.n <= 5)
        assert s.rejected("connections_full") == 15
        honest = await s.client(GET)
        assert await honest.answer() == (200, 2)
        await s.wait(20)
        await honest.say(GET)
        assert await honest.answer() == (200, 2)
        await s.wait(10)
        await until(lambda: s.connections.n == 1)
        assert s.rejected("head_timeout") == 4 and s.rejected("connections_full") == 16
        for sock in silent:
            sock.close()

    serve(scenario, tls=Tls(cert=certificate[0], key=certificate[1], version=ssl.TLSVersion.TLSv1_3), max_connections=5)


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


class Heard:
    """What a client heard, as `http.client` reads it from a socket."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def makefile(self, mode: str) -> Any:
        return io.BytesIO(self._data)


@each_of(
    ("method", "version", "framing", "n"),
    [("GET", "1.1", "chunked", 3), ("POST", "1.1", "chunked", 3), ("GET", "1.0", None, 3), ("HEAD", "1.1", None, 0)],
)
def test_a_stream_comes_in_chunks_to_who_knows_them(method: str, version: str, framing: str | None, n: int) -> None:
    """To HTTP/1.0 as it is, up to the end of the connection; nothing of a body follows the head that HEAD asks for."""

    async def scenario(s: Serving) -> None:
        client = await s.client(f"{method} /stream/3 HTTP/{version}\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        heard = b""
        while more := await client.hear():
            heard += more
        answer = http.client.HTTPResponse(Heard(heard), method=method)  # type: ignore[arg-type]
        answer.begin()
        if method != "HEAD":
            assert answer.getheader("transfer-encoding") == framing
        assert answer.status == 200 and answer.read() == n * CHUNK
        _, _, body = heard.partition(b"\r\n\r\n")
        chunks = n * (b"3e8\r\n" + CHUNK + b"\r\n") + b"0\r\n\r\n"
        assert body == (chunks if framing else n * CHUNK)

    serve(scenario)
