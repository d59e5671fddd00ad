"""A server that means harm: what it sends without end is cut at stated bounds, and the run ends with its report."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from server.loadtest.driving.target import MOST_PAGE, TargetError
from server.loadtest.options import read_options
from server.loadtest.plans import plans_of
from server.loadtest.results.page import page
from server.loadtest.results.result import RunResult
from server.loadtest.results.table import result_text
from server.loadtest.run import LoadTest
from server.loadtest.wire.connection import MOST_BODY
from tests.tables import each_of

PIECE = b"a" * 60_000
OK = b"HTTP/1.1 200 OK\r\n"
STREAM = OK + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
MODELS = b'{"data": [{"id": "tiny"}]}'


@dataclass(frozen=True)
class Endless:
    first: list[bytes]
    piece: bytes

    def __iter__(self) -> Iterator[bytes]:
        yield from self.first
        while True:
            yield self.piece


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def event(data: bytes) -> bytes:
    return chunk(b"data: " + data + b"\n\n")


def whole(data: bytes) -> bytes:
    return OK + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


def streamed(*events: bytes) -> list[bytes]:
    return [STREAM, *map(event, events), chunk(b"")]


SAID = b'{"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]}'
TIMED = b'{"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1, "timings": {"queue": %s}}}'
HEADERS, LONG = "more than 64 KiB of headers or chunk framing", "an answer of more than 16 MiB"
ENDLESS: dict[str, tuple[Iterable[bytes], str]] = {
    "headers": (Endless([OK], b"X: y\r\n" * 5000), HEADERS),
    "one header": (Endless([OK, b"X: "], PIECE), HEADERS),
    "interim answers": (Endless([], b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), HEADERS),
    "trailers": (Endless([STREAM, b"0\r\n"], b"X: y\r\n" * 5000), HEADERS),
    "one trailer": (Endless([STREAM, b"0\r\nX: "], PIECE), HEADERS),
    "a chunk's extension": (Endless([STREAM, b"5;"], PIECE), HEADERS),
    "one line of events": (Endless([STREAM, chunk(b"data: ")], chunk(PIECE)), LONG),
    "a line in small pieces": (Endless([STREAM], chunk(b"a" * 500) * 100), LONG),
    "comments": (Endless([STREAM], chunk(b": a\n\n" * 9000)), LONG),
    "a body": (Endless([OK + b"Content-Length: 999999999999\r\n\r\n"], PIECE), LONG),
    "a body without a length": (Endless([OK + b"\r\n"], PIECE), LONG),
}
ABSURD: dict[str, tuple[list[bytes], str]] = {
    "seconds of 1e308": (streamed(SAID, TIMED % b"1e308"), "unreadable answer: Expected `float` <= 1000000000.0"),
    "seconds of nan": (streamed(SAID, TIMED % b'"nan"'), "unreadable answer: Expected `float`"),
    "a deep nest": (streamed(b'{"error": ' + b"[" * 50_000), "unreadable answer: "),
    "tokens below 0": (streamed(SAID, b'{"usage": {"prompt_tokens": -1}}'), "unreadable answer: Expected `int` >= 0"),
}


class Hostile:
    """Answers each POST, and each GET of a path, with pieces that may have no end."""

    def __init__(
        self, post: Iterable[bytes], pages: dict[str, Iterable[bytes]] | None = None, pause: float = 0
    ) -> None:
        self.post, self.pause = post, pause
        self.pages = {"/v1/models": [whole(MODELS)], **(pages or {})}
        self.most = 0  # bytes of one answer

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        sent = 0
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, path, _ = head.decode().split(" ", 2)
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                await reader.readexactly(int(length[0][15:]) if length else 0)
                sent = 0
                for piece in self.post if method == "POST" else self.pages.get(path, [whole(b"")]):
                    writer.write(piece)
                    sent += len(piece)
                    await writer.drain()
                    await asyncio.sleep(self.pause)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.most = max(self.most, sent)
            writer.close()


def run(hostile: Hostile, *flags: str) -> RunResult:
    async def go() -> RunResult:
        server = await asyncio.start_server(hostile.serve, "127.0.0.1", 0)
        try:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            options = read_options(
                ["--quiet", "--url", url, "--settle", "100ms", "--warmup", "0", "--requests", "3", *flags]
            )
            return await asyncio.wait_for(LoadTest(options, plans_of(options)).run(asyncio.Event()), 60)
        finally:
            server.close()

    return asyncio.run(go())


def reported(result: RunResult, n: int = 3) -> list[str]:
    """What the requests failed by; both reports can be written."""
    assert "requests" in result_text(result) and page(result)
    (step,) = result.steps
    assert step.summary.requests == n
    return [error for error, times in step.summary.errors.items() for _ in range(times)]


@each_of("name", ENDLESS)
def test_what_has_no_end_is_cut(name: str) -> None:
    pieces, said = ENDLESS[name]
    hostile = Hostile(pieces)
    assert reported(run(hostile, "--requests", "1"), 1) == [said]
    assert hostile.most < MOST_BODY + (8 << 20), "what the sockets hold comes on top"


@each_of("name", ABSURD)
def test_what_is_absurd_is_that_requests_failure(name: str) -> None:
    pieces, said = ABSURD[name]
    errors = reported(run(Hostile(pieces)))
    assert len(errors) == 3 and all(error.startswith(said) and len(error) < 160 for error in errors), errors


def test_a_drip_ends_with_the_requests_time() -> None:
    drip = Endless([STREAM], chunk(b"d"))
    assert reported(run(Hostile(drip, pause=0.01), "--timeout", "300ms")) == ["timeout"] * 3


@each_of("piece", [PIECE, b"a{\n" * 20_000, b"a 1e308\n" * 8_000], ids=["one line", "braces", "values"])
def test_pages_without_an_end_are_no_pages(piece: bytes) -> None:
    metrics = Endless([OK + b"\r\n"], piece)
    hostile = Hostile(streamed(SAID), {"/metrics": metrics})
    assert reported(run(hostile)) == []
    assert hostile.most < MOST_PAGE + (8 << 20)


def test_a_page_that_ends_in_time_costs_no_more_than_its_bytes() -> None:
    """An open brace on each line was looked for to the end of the page, from every line."""
    hostile = Hostile(streamed(SAID), {"/metrics": [whole(b"a{\n" * 1_000_000 + b"b 1e308\nc nan\nd 2\n")]})
    assert reported(run(hostile)) == []


def test_a_list_of_models_without_an_end_is_one_sentence() -> None:
    hostile = Hostile([], {"/v1/models": Endless([OK + b"\r\n"], PIECE)})
    with pytest.raises(TargetError, match="no server at 127.0.0.1:.*: an answer of more than 4 MiB"):
        run(hostile)
    assert hostile.most < MOST_PAGE + (8 << 20)


@each_of("data", [b"[" * 100_000, b'{"data": [{"id": "%s"}]}' % (b"x" * 10**6), b'{"data": {}}'])
def test_a_list_of_models_that_is_none_names_none(data: bytes) -> None:
    assert run(Hostile(streamed(SAID), {"/v1/models": [whole(data)]})).model is None
