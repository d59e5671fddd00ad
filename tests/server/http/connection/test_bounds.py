"""What a client sends, withholds or leaves unread costs itself its connection, and no other client anything."""

import contextlib
import gc
import socket
import struct

import pytest

from server.http.connection.connections import REST_SECONDS
from server.http.connection.guard import Guard
from tests.server.http.connection.serving import CHUNK, GET, Serving, Tls, post, serve, settled, until
from tests.tables import each_of

pytestmark = pytest.mark.process

MIB = 1 << 20


# ---- connections


def test_a_silent_connection_gives_way_to_a_new_one_and_an_asking_one_does_not(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        busy = await s.client(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n")
        resting = await s.client(GET)
        assert (await resting.answer())[0] == 200
        silent = [await s.client() for _ in range(50)]
        assert s.connections.n <= 6 and s.rejected("connections_full") == 50 - 3
        assert [await one.hear() for one in silent[:-3]] == [b""] * 47
        await resting.say(GET)
        assert await resting.answer() == (200, 2)
        for _ in range(4):
            assert await (await s.client(GET)).answer() == (200, 2)
        assert s.rejected("connections_full") == 51
        assert await resting.hear() == b"", "no more are silent, so the first that rests gives way"
        s.app.waiting.set()
        assert await busy.answer() == (200, 2)

    serve(scenario, tls=tls, max_connections=5)


def test_one_too_many_is_told_so_and_a_probe_is_answered(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        busy = [await s.client(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n") for _ in range(2)]
        more = await s.client(GET)
        assert await more.code() == (503, "connections_full")
        probe = await s.client(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await probe.answer())[0] == 200 and await probe.hear() == b""
        s.app.waiting.set()
        assert [await one.answer() for one in busy] == [(200, 2)] * 2
        await until(lambda: s.connections.n == 2)
        assert s.rejected("connections_full") == 1

    serve(scenario, tls=tls, max_connections=2)


def test_a_head_that_does_not_come_is_not_waited_for(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        silent, half, again = await s.client(), await s.client(b"GET / HTTP/1.1\r\n"), await s.client(GET)
        assert (await again.answer())[0] == 200
        await s.wait(20)
        await again.say(b"G")
        await s.wait(10)
        assert await half.code() == (408, "head_timeout") and await silent.hear() == b""
        assert s.rejected("head_timeout") == 2
        await until(lambda: s.connections.n == 1)
        await s.wait(20)
        assert await again.code() == (408, "head_timeout")
        await until(lambda: s.connections.n == 0)

    serve(scenario, tls=tls, receive_seconds=30)


def test_a_resting_connection_is_asked_again_until_it_has_rested_long_enough(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(GET)
        for _ in range(3):
            assert (await client.answer())[0] == 200
            await s.wait(REST_SECONDS - 1)
            await client.say(GET)
        assert (await client.answer())[0] == 200 and s.rejected("head_timeout") == 0
        await s.wait(REST_SECONDS)
        assert await client.hear() == b""
        await until(lambda: s.connections.n == 0)

    serve(scenario, tls=tls, receive_seconds=5)


def test_a_body_knows_that_its_client_has_left(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(b"POST /wait HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab")
        await until(lambda: s.app.body)
        assert not s.app.body.left
        client.sock.close()
        await until(lambda: s.app.body.left)
        s.app.waiting.set()

    serve(scenario, tls=tls)


def test_nothing_is_kept_of_a_connection_that_was_reset(every_tls: Tls | None) -> None:
    """With TLS each held 180 KiB for a day, by a timer that is set after an answer; many clients leave in this way."""

    async def scenario(s: Serving) -> None:
        for _ in range(20):
            client = await s.client(GET)
            assert (await client.answer())[0] == 200
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.sock.close()
        await until(lambda: s.connections.n == 0)
        await settled()
        s.app.body = None
        gc.collect()
        assert not [one for one in gc.get_objects() if isinstance(one, Guard)]

    serve(scenario, tls=every_tls)


# ---- heads


@each_of("start", [b"GET /length/2 HTTP/1.1\r\nhost: a\r\nx: ", b"GET /"])
def test_a_head_has_an_end(tls: Tls | None, start: bytes) -> None:
    async def scenario(s: Serving) -> None:
        attacker, waiting = await s.client(start), await s.client()
        await attacker.say(b"x" * (65536 - len(start)))
        assert await attacker.code() == (431, "head_too_large")
        await waiting.say(GET)
        assert (await waiting.answer())[0] == 200
        assert s.rejected("head_too_large") == 1
        assert 'route="malformed",status="431"} 1.0' in s.metrics.render().decode()
        await until(lambda: s.connections.n == 1)

    serve(scenario, tls=tls)


def test_the_largest_head_is_answered_and_the_next_is_not(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client()
        for more, status in ((0, 200), (0, 200), (1, 431)):
            head = GET[:-2] + b"x: " + b"y" * (65536 - len(GET) - 5 + more) + b"\r\n\r\n"
            assert len(head) == 65536 + more
            await client.say(head[:65536])
            assert (await client.answer())[0] == status

    serve(scenario, tls=tls)


@each_of("endless", [b"0\r\n" + b"a: b\r\n" * 25000, b"0\r\na: " + b"b" * 140000, b"5;" + b"e" * 140000], ids=len)
def test_what_surrounds_a_body_has_an_end_too(tls: Tls | None, endless: bytes) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(b"POST /read HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        with contextlib.suppress(ConnectionError):
            await client.say(endless)
        assert (await client.hear())[:12] in (b"HTTP/1.1 431", b""), "what it still sends may reset the connection"
        client.sock.close()
        await until(lambda: s.connections.n == 0)
        assert s.rejected("head_too_large") == 1

    serve(scenario, tls=tls)


def test_many_small_chunks_are_a_body(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(b"POST /read HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n")
        await client.say(b"1\r\nx\r\n" * 30000 + b"0\r\nafter: it\r\n\r\n")
        assert await client.answer() == (200, 30000)
        assert b"after" not in s.app.headers, "what follows a body is no header"

    serve(scenario, tls=tls, block=0.15)  # the first piece of such chunks takes 22 ms, on a slow machine some 60


# ---- bodies


def test_bodies_that_stop_give_way_at_once_and_end_in_time(tls: Tls | None) -> None:
    """The budget is full of them; a chat that is sent as it should be is answered."""

    async def scenario(s: Serving) -> None:
        stuck = [await s.client(post(MIB), b"x" * (MIB - 1)) for _ in range(4)]
        await until(lambda: s.budget.held == 4 * (MIB - 1))
        honest = await s.client(post(1000), CHUNK)
        assert await honest.answer() == (429, {"error": {**FULL}}), "they have only just stopped"
        await s.wait(2)
        await honest.say(post(1000) + CHUNK)
        assert await honest.answer() == (200, 1000)
        assert await stuck[0].code() == (429, "bodies_full")
        await s.wait(28)
        assert [await one.code() for one in stuck[1:]] == [(408, "body_timeout")] * 3
        await until(lambda: s.budget.held == 0 and s.connections.n == 1)
        assert s.rejected("body_timeout") == 3 and s.rejected("bodies_full") == 2

    serve(scenario, tls=tls, max_inflight_bytes=4 * MIB, receive_seconds=30)


FULL = {
    "message": "too many request bodies are being read",
    "type": "rate_limit_error",
    "param": None,
    "code": "bodies_full",
}


def test_a_slow_body_is_taken_and_one_below_the_rate_is_not(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        slow, slower = await s.client(post(100_000)), await s.client(post(100_000))
        for _ in range(10):
            await slow.say(CHUNK * 10)
            await slower.say(CHUNK * 5)
            await s.wait(5)
        assert await slow.answer() == (200, 100_000)
        await s.wait(11)
        assert await slower.code() == (408, "body_timeout")
        await until(lambda: s.budget.held == 0)

    serve(scenario, tls=tls, receive_seconds=30, receive_rate=2000)


def test_a_body_has_an_end_whatever_its_rate(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(post(100_000))
        for _ in range(10):
            await client.say(CHUNK * 5)
            await s.wait(5)
        assert await client.code() == (408, "body_timeout")

    serve(scenario, tls=tls, receive_rate=1000, body_seconds=50)


def test_a_body_that_nobody_reads_is_not_waited_for(tls: Tls | None) -> None:
    """Its answer was given before it came."""

    async def scenario(s: Serving) -> None:
        client = await s.client(b"POST /length/2 HTTP/1.1\r\nhost: a\r\ncontent-length: 10\r\n\r\nx")
        assert await client.answer() == (200, 2)
        await s.wait(31)
        assert await client.hear() == b""
        await until(lambda: s.connections.n == 0)

    serve(scenario, tls=tls, receive_seconds=30)


def test_a_body_behind_a_request_that_runs_is_not_late(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n" + post(2000))
        for _ in range(10):
            await s.wait(20)
        s.app.waiting.set()
        assert await client.answer() == (200, 2)
        await client.say(CHUNK * 2)
        assert await client.answer() == (200, 2000)

    serve(scenario, tls=tls, receive_seconds=30)
