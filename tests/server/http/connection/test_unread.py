"""Answers that nobody reads cost no place and bounded bytes; slow readers get theirs whole."""

import socket

from tests.server.http.connection.serving import CHUNK, GET, Client, Serving, serve, settled, until
from tests.tables import each_of

MIB = 1 << 20


async def unread_stream(s: Serving, path: str = "/stream/8000") -> Client:
    """A client who asked for 8 MB and has read nothing; the request that made them is over."""
    done = len(s.app.ended)
    client = await s.client(b"GET %s HTTP/1.1\r\nhost: a\r\n\r\n" % path.encode())
    await until(lambda: len(s.app.ended) > done)
    return client


@each_of("path", ["/stream/8000", "/length/8000000"])
def test_answers_that_nobody_reads_are_bounded_and_end_in_time(path: str) -> None:
    async def scenario(s: Serving) -> None:
        clients = [await unread_stream(s, path) for _ in range(8)]
        assert s.unread <= 16 * MIB
        cut = s.rejected("unread_full")
        assert 3 <= cut < 8, "the first ones gave way to the last"
        await until(lambda: s.connections.n == 8 - cut)
        for _ in range(5):  # what the kernel still takes of it, on both sides, counts as taken
            await s.wait(61)
            await settled()
        assert s.connections.n == 0
        assert s.rejected("unread") == 8 - cut and s.unread == 0
        for client in clients:
            client.sock.close()

    serve(scenario, max_unread_bytes=16 * MIB, send_seconds=60)


def test_a_slow_reader_gets_all_of_it() -> None:
    """Each time shortly before it would be too late; it waits longer than a kept connection may rest, too."""

    async def scenario(s: Serving) -> None:
        client = await unread_stream(s)
        heard = bytearray()
        while s.unread:
            await s.wait(50)
            for _ in range(20):
                heard += await client.hear()
            await settled()
        assert s.connections.clock.now > 100 and s.rejected("unread") == 0
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)  # the rest, as fast as it comes
        while not heard.endswith(b"\r\n0\r\n\r\n"):
            more = await client.hear()
            assert more
            heard += more
        assert heard.count(CHUNK) == 8000
        await client.say(GET)
        assert (await client.answer())[0] == 200

    serve(scenario, send_seconds=60)


def test_a_connection_that_is_to_close_says_everything_first() -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(b"GET /length/8000000 HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
        await until(lambda: s.app.ended)
        assert s.unread > 0
        assert await client.answer() == (200, 8_000_000) and await client.hear() == b""

    serve(scenario)


def test_further_requests_wait_until_an_answer_is_taken() -> None:
    """Whether they came with the first one or later: a connection holds one unread answer."""

    async def scenario(s: Serving) -> None:
        asked = b"GET /length/8000000 HTTP/1.1\r\nhost: a\r\n\r\n"
        client = await s.client(asked * 3)
        await until(lambda: s.app.ended)
        await client.say(asked)
        await settled()
        assert len(s.app.ended) == 1
        for _ in range(4):
            n = len(s.app.ended)
            assert await client.answer() == (200, 8_000_000)
            await settled()
            assert len(s.app.ended) == min(4, n + 1)
        await client.say(GET)
        assert await client.answer() == (200, 2)

    serve(scenario)


def test_a_client_that_leaves_leaves_nothing() -> None:
    async def scenario(s: Serving) -> None:
        client = await unread_stream(s)
        assert s.unread > 0
        client.sock.close()
        await until(lambda: s.connections.n == 0)
        assert s.unread == 0

    serve(scenario)


def test_hundreds_of_resting_connections_cost_the_busy_ones_nothing() -> None:
    async def scenario(s: Serving) -> None:
        resting = [await s.client(GET) for _ in range(300)]
        for one in resting:
            assert (await one.answer())[0] == 200
        busy = [await s.client() for _ in range(16)]
        for _ in range(10):
            for one in busy:
                await one.say(GET)
            assert [await one.answer() for one in busy] == [(200, 2)] * 16
            await s.wait(2)
        assert s.connections.n == 316
        for one in resting:
            await one.say(GET)
        assert {await one.answer() for one in resting} == {(200, 2)}

    serve(scenario)
