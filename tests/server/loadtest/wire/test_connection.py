"""Connections: kept, replaced when they went stale, and told apart from broken ones; answers of every framing."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from server.loadtest.wire.connection import ConnectionFailed, ConnectionPool, Response
from tests.tables import each_of

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def asked(pool: ConnectionPool) -> tuple[int, bytes]:
    """Status and body of an answer."""
    response = Response()
    await pool.exchange(pool.request("GET", "/x", {}), response)
    return response.status, b"".join(response.parts)


def play(handler: Handler, scene: Callable[[ConnectionPool], Awaitable[None]]) -> None:
    """A server that does what the handler says with each connection, and a pool that asks it."""

    async def run() -> None:
        async def closing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await handler(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        server = await asyncio.start_server(closing, "127.0.0.1", 0)
        pool = ConnectionPool(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        try:
            await asyncio.wait_for(scene(pool), 20)
        finally:
            pool.close()
            server.close()

    asyncio.run(run())


def says(answer: bytes, *, times: int = 1000) -> Handler:
    """The same answer to so many requests of a connection, which then ends."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(times):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()

    return handler


LENGTH = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Request-Id: 7\r\n\r\nhi"
FRAMINGS = {
    "length": LENGTH,
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nh\r\n1\r\ni\r\n0\r\n\r\n",
    "hints first": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + LENGTH,
}


@each_of("framing", FRAMINGS)
def test_a_connection_is_used_again(framing: str) -> None:
    async def scene(pool: ConnectionPool) -> None:
        for _ in range(3):
            assert await asked(pool) == (200, b"hi")
        assert pool.opened == 1

    play(says(FRAMINGS[framing]), scene)


@each_of(
    "answer", [b"HTTP/1.1 200 OK\r\n\r\nhi", b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi"]
)
def test_an_answer_may_end_with_its_connection(answer: bytes) -> None:
    async def scene(pool: ConnectionPool) -> None:
        for _ in range(2):
            assert await asked(pool) == (200, b"hi")
        assert pool.opened == 2

    play(says(answer, times=1), scene)


def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    async def scene(pool: ConnectionPool) -> None:
        assert await asyncio.gather(*(asked(pool) for _ in range(4))) == [(200, b"hi")] * 4
        assert pool.opened == 4

    play(says(LENGTH), scene)


def test_a_kept_connection_that_the_server_closed_is_replaced_and_counted() -> None:
    async def scene(pool: ConnectionPool) -> None:
        for _ in range(3):
            assert await asked(pool) == (200, b"hi")
            await asyncio.sleep(0.05)
        assert pool.opened == 3 and pool.closed == {"idle": 2}

    play(says(LENGTH, times=1), scene)


def test_what_was_written_is_never_sent_again() -> None:
    """The server may have begun with it: a request that is dropped is told, not hidden by a second one."""
    heard = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        for answer in (LENGTH, b""):  # the second request of a connection gets no byte
            await reader.readuntil(b"\r\n\r\n")
            heard += 1
            writer.write(answer)

    async def scene(pool: ConnectionPool) -> None:
        assert await asked(pool) == (200, b"hi")
        with pytest.raises(ConnectionFailed, match="connection closed"):
            await asked(pool)
        assert (heard, pool.opened) == (2, 1) and pool.closed == {"under a request": 1}

    play(handler, scene)


@each_of(
    ("answer", "said"),
    [
        (b"", "connection closed"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", "connection closed"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhi", "connection closed"),
        (b"SSH-2.0-OpenSSH\r\n", "."),
    ],
)
def test_a_broken_answer_is_told_and_not_tried_again(answer: bytes, said: str) -> None:
    async def scene(pool: ConnectionPool) -> None:
        with pytest.raises(ConnectionFailed, match=said):
            await asked(pool)
        assert pool.opened == 1

    play(says(answer, times=1), scene)


def test_nobody_there_is_told() -> None:
    async def scene(pool: ConnectionPool) -> None:
        nobody = ConnectionPool("http://127.0.0.1:1")
        with pytest.raises(ConnectionFailed, match="cannot connect: ConnectionRefusedError"):
            await asked(nobody)

    play(says(LENGTH), scene)


def test_what_we_left_ourselves_is_not_asked_again() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(LENGTH)
        await reader.read()

    async def scene(pool: ConnectionPool) -> None:
        await asked(pool)
        asking = asyncio.create_task(asked(pool))
        await asyncio.sleep(0.01)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert pool.opened == 1
        assert await asked(pool) == (200, b"hi") and pool.opened == 2, "what came late is nobody's answer"

    play(handler, scene)


@each_of(
    ("url", "where", "said"),
    [
        ("http://host:81/llm/", ("host", 81), ["GET /llm/x HTTP/1.1", "Host: host:81"]),
        ("https://host", ("host", 443), ["GET /x HTTP/1.1", "Host: host"]),
        ("http://[::1]:80", ("::1", 80), ["GET /x HTTP/1.1", "Host: [::1]"]),
        ("http://[::1]:81", ("::1", 81), ["GET /x HTTP/1.1", "Host: [::1]:81"]),
    ],
)
def test_addresses(url: str, where: tuple[str, int], said: list[str]) -> None:
    pool = ConnectionPool(url)
    assert (pool.host, pool.port) == where
    assert pool.request("GET", "/x", {}).decode().split("\r\n") == [*said, "", ""]


@each_of("url", ["host:80", "ftp://host", "http://", "http://host:word"])
def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(ValueError, match="."):
        ConnectionPool(url)


def test_a_request_names_its_host_prefix_and_length() -> None:
    said = ConnectionPool("http://host:81/llm").request("POST", "/chat", {"Authorization": "Bearer k"}, b"{}")
    head, _, body = said.partition(b"\r\n\r\n")
    assert body == b"{}"
    assert head.decode().split("\r\n") == [
        "POST /llm/chat HTTP/1.1", "Host: host:81", "Authorization: Bearer k", "Content-Type: application/json",
        "Content-Length: 2",
    ]  # fmt: skip
