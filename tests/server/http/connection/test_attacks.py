"""What hostile clients tried at the edge: none ends the server, smuggles a request, or makes another client wait."""

import asyncio
import contextlib
import time

import pytest

from server.http.connection.connections import READ
from server.http.connection.guard import PIECE
from tests.server.http.connection.serving import CHUNK, GET, Serving, Tls, post, serve, settled, until
from tests.tables import each_of

pytestmark = pytest.mark.process

SMUGGLED = b"GET /length/77 HTTP/1.1\r\nhost: a\r\n\r\n"
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"


@pytest.mark.process
@each_of("target", [b"http://a:99999/", b"http://[::1/", b"//", b"*", b"http://a/length/2", b"/%ff%00"])
def test_no_target_ends_the_clock(tls: Tls | None, target: bytes) -> None:
    """Its head is whole, its connection is closed by nobody, and a body may be announced: the clock ticks on."""

    async def scenario(s: Serving) -> None:
        for body in (b"", b"content-length: 5\r\n"):
            client = await s.client(b"GET " + target + b" HTTP/1.1\r\nhost: a\r\n" + body + b"\r\n")
            assert (await client.answer())[0] in (200, 400, 404, 500)
        await s.wait(31)
        await s.wait(31)
        await until(lambda: s.connections.n == 0)
        assert await (await s.client(GET)).answer() == (200, 2)

    serve(scenario, tls=tls)


def test_a_connection_that_is_lost_before_its_request_begins_leaves_nothing(every_tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        for _ in range(20):
            client = await s.client()
            await client.say(post(5))
            client.sock.close()
        await until(lambda: s.connections.n == 0)
        await s.wait(31)
        assert s.connections.unparsed == 0

    serve(scenario, tls=every_tls)


def test_pipelined_heads_are_parsed_one_by_one(tls: Tls | None) -> None:
    """One request of a connection is in work, whatever lies behind it, and others are answered in between."""

    async def scenario(s: Serving) -> None:
        floods = [await s.client() for _ in range(8)]
        asked = b"GET /length/2 HTTP/1.1\r\n\r\n"
        for flood in floods:
            await flood.say(asked * (READ // len(asked)))
        honest = await s.client()
        for _ in range(20):
            before = time.thread_time()
            await honest.say(GET)
            assert await honest.answer() == (200, 2)
            assert time.thread_time() - before < 0.1, "of processor time, of all that ran in between"
        assert s.connections.unparsed <= 8 * 2 * READ

    serve(scenario, tls=tls)


def test_a_request_that_runs_has_nothing_parsed_behind_it(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(b"GET /wait HTTP/1.1\r\nhost: a\r\n\r\n")
        await settled()
        await client.say(GET * 100)
        await until(lambda: s.connections.unparsed == 100 * len(GET))
        s.app.waiting.set()
        heard = b""
        while heard.count(b"HTTP/1.1 200") < 101:
            heard += await client.hear()
        await settled()
        assert s.connections.unparsed == 0

    serve(scenario, tls=tls)


@each_of("apart", [False, True], ids=["one packet", "two packets"])
@each_of("how", [H2C, b"connection: upgrade\r\nupgrade: websocket\r\n"], ids=["h2c", "websocket"])
def test_an_upgrade_is_declined_and_its_body_read(tls: Tls | None, how: bytes, apart: bool) -> None:
    """As JDK 17's HttpClient and `curl --http2` ask at their defaults; what stands in a body is never a request."""

    async def scenario(s: Serving) -> None:
        head = b"POST /read HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n" % len(SMUGGLED) + how + b"\r\n"
        client = await s.client(*([head, SMUGGLED] if apart else [head + SMUGGLED]))
        assert await client.answer() == (200, len(SMUGGLED))
        await client.say(GET)
        assert await client.answer() == (200, 2), "and the connection goes on"
        chunked = b"POST /read HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n" + how + b"\r\n"
        await client.say(chunked + b"%x\r\n" % len(SMUGGLED))
        await client.say(SMUGGLED + b"\r\n0\r\n\r\n")
        assert await client.answer() == (200, len(SMUGGLED))
        assert s.app.ended == ["/read", "/length/2", "/read"]

    serve(scenario, tls=tls)


@each_of("preface", [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/2.0\r\nhost: a\r\n\r\n"])
def test_another_version_of_http_is_refused(tls: Tls | None, preface: bytes) -> None:
    async def scenario(s: Serving) -> None:
        client = await s.client(preface + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
        assert await client.code() == (400, "http_version")
        await s.wait(31)
        await until(lambda: s.connections.n == 0)
        assert s.app.ended == []

    serve(scenario, tls=tls)


def test_a_head_has_few_fields(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        for n, status in ((255, 200), (256, 431)):  # and one Host
            client = await s.client(GET[:-2] + b"a: b\r\n" * n + b"\r\n")
            assert (await client.answer())[0] == status
        client = await s.client(GET[:-2] + b"a:\r\n" * 16000 + b"\r\n")
        assert await client.code() == (431, "head_too_large")
        assert s.app.ended == ["/length/2"]

    serve(scenario, tls=tls)


@each_of(
    ("field", "status"),
    [
        (b"content-type: a" + b";" * 255, 200), (b"content-type: a" + b";" * 256, 431),
        (b"origin: " + b"a" * 513, 431),
    ],
)  # fmt: skip
def test_nothing_long_is_taken_to_pieces(tls: Tls | None, field: bytes, status: int) -> None:
    async def scenario(s: Serving) -> None:
        head = b"POST /read HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n" + field + b"\r\n\r\n"
        client = await s.client(head + b"2\r\nab\r\n0\r\n\r\n" + GET)
        heard = b""
        while heard.count(b"HTTP/1.1 ") < 2:
            heard += await client.hear()
        assert heard.startswith(b"HTTP/1.1 %d " % status)
        assert s.app.ended == {431: ["/length/2"], 200: ["/read", "/length/2"]}[status]

    serve(scenario, tls=tls)


def test_stalled_bodies_give_way_to_whoever_asks(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        stalled = [await s.client(post(100)) for _ in range(15)]
        sending = await s.client(post(100_000))
        await s.wait(1)
        for _ in range(99):
            await sending.say(CHUNK)
        await settled()
        for _ in range(20):
            honest = await s.client(post(1000), CHUNK)
            assert await honest.answer() == (200, 1000)
        told = [await one.code() for one in stalled if s.rejected("connections_full")][:1]
        assert told == [(503, "connections_full")]
        await sending.say(CHUNK)
        assert await sending.answer() == (200, 100_000), "whose body comes keeps its place"

    serve(scenario, tls=tls, max_connections=16)


@each_of("framing", [b"content-length: 100\r\n", b"transfer-encoding: chunked\r\n"], ids=["length", "chunked"])
def test_nothing_is_written_into_an_answer_that_has_begun(tls: Tls | None, framing: bytes) -> None:
    """Garbage while it streams: it goes on, or ends with its connection."""

    async def scenario(s: Serving) -> None:
        client = await s.client(b"POST /stream/1000 HTTP/1.1\r\nhost: a\r\n" + framing + b"\r\n")
        heard = await client.hear()
        await client.say(b"\x00garbage\r\n\r\n" * 50)
        while more := await client.hear():
            heard += more
            if b"\r\n0\r\n\r\n" in heard:
                break
        answer = heard.partition(b"\r\n0\r\n\r\n")[0]
        assert answer.count(b"HTTP/1.1") == 1 and answer.startswith(b"HTTP/1.1 200")
        await s.wait(31)
        await s.wait(31)
        await until(lambda: s.connections.n == 0)
        assert s.unread == 0

    serve(scenario, tls=tls)


@each_of("begins", [b"GET / HTTP/1.1\r\n", b"POST /read HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"])
@each_of("unit", [b"a:\r\n", b"1\r\nx\r\n", b"1;e\r\nx\r\n", b"\r\n", b"a: b\r\n c\r\n"], ids=len)
def test_no_bytes_hold_the_loop(begins: bytes, unit: bytes) -> None:
    """The dearest of each kind, from ten connections at once; an honest one is answered between any two of them."""

    async def scenario(s: Serving) -> None:
        floods = [await s.client(begins) for _ in range(10)]
        data = unit * ((60 << 10) // len(unit))
        for flood in floods:
            await flood.say(data)
        honest = await s.client()
        for _ in range(10):
            before = time.thread_time()
            await honest.say(GET)
            assert await honest.answer() == (200, 2)
            assert time.thread_time() - before < 0.15
        for flood in floods:
            flood.sock.close()
        await until(lambda: s.connections.n == 1)

    serve(scenario)


def test_a_tls_handshake_logs_no_error(every_tls: Tls | None, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(s: Serving) -> None:
        for _ in range(20):
            assert await (await s.client(GET)).answer() == (200, 2)
        await asyncio.sleep(0.01)

    serve(scenario, tls=every_tls)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_a_large_body_is_parsed_in_pieces(tls: Tls | None) -> None:
    async def scenario(s: Serving) -> None:
        n = 40 * PIECE + 1
        client = await s.client(post(n))
        for start in range(0, n, READ):
            await client.say(b"x" * min(READ, n - start))
        assert await client.answer() == (200, n)

    serve(scenario, tls=tls)


def test_a_body_of_lines_is_no_head_whoever_has_a_turn_meanwhile(tls: Tls | None) -> None:
    """Head and body come in one packet, in the same moment as bytes of others that wait for a turn."""

    async def scenario(s: Serving) -> None:
        others = [await s.client(post(1 << 20)) for _ in range(3)]
        for size in (3000, 40_000):
            client = await s.client()
            for _ in range(5):
                for one in others:
                    one.sock.send(b"x" * 5000)
                client.sock.send(post(size) + b"\n" * size)
                for one in others:
                    one.sock.send(b"x" * 5000)
                assert await client.answer() == (200, size)

    serve(scenario, tls=tls)


EARLY = b"POST /length/2 HTTP/1.1\r\nhost: a\r\n"  # is answered before its body is read


@each_of("body", [b"content-length: 1\r\n\r\nx", b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"], ids=len)
@each_of("apart", [False, True], ids=["one packet", "two packets"])
@each_of("head", [b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 23000, b"GET /" + b"a" * 95_000], ids=len)
def test_a_head_has_its_bounds_behind_a_body_that_nobody_read(apart: bool, body: bytes, head: bytes) -> None:
    async def scenario(s: Serving) -> None:
        announced, end, sent = body.partition(b"\r\n\r\n")
        client = await s.client(*([EARLY + announced + end, sent] if apart else [EARLY + body]))
        assert await client.answer() == (200, 2)
        with contextlib.suppress(ConnectionError):
            await client.say(head)
        assert (await client.hear())[:12] in (b"HTTP/1.1 431", b"")
        await until(lambda: s.connections.n == 0)
        assert s.rejected("head_too_large") == 1

    serve(scenario)


@each_of("version", [b"1.0", b"1.1"])
def test_a_client_that_still_sends_hears_an_early_answer(every_tls: Tls | None, version: bytes) -> None:
    """Also one after which the connection closes."""

    async def scenario(s: Serving) -> None:
        head = EARLY.replace(b"1.1", version) + b"connection: close\r\ncontent-length: 900000\r\n\r\n"
        client = await s.client(head)
        for _ in range(900):
            await client.say(CHUNK)
        assert await client.answer() == (200, 2) and await client.hear() == b""

    serve(scenario, tls=every_tls)


@each_of("path", [b"/length/2", b"/read", b"/stream/50", b"/wait"])
@each_of("apart", [False, True], ids=["one packet", "two packets"])
def test_garbage_for_a_body_is_no_defect_of_ours(
    tls: Tls | None, path: bytes, apart: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(s: Serving) -> None:
        head = b"POST " + path + b" HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"
        client = await s.client(*([head, b"zz\r\n"] if apart else [head + b"zz\r\n"]))
        while await client.hear():
            pass
        s.app.waiting.set()
        await s.wait(31)
        await until(lambda: s.connections.n == 0)

    serve(scenario, tls=tls)
    assert not [record for record in caplog.records if record.levelname == "ERROR" and record.exc_info]
    assert "Exception in ASGI" not in caplog.text and "without" not in caplog.text
