"""Clients that withhold, or do not read, at full scale; and honest ones that are slow. Settings are the defaults."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY
from tests.e2e.running import RunningServer
from tests.hostile.clients import all_but_one_byte, connected, crowd, head, posted, say
from tests.hostile.conftest import Held
from tests.hostile.measure import Attack
from tests.hostile.posting import until_over

pytestmark = [pytest.mark.long, pytest.mark.process]
MIB = 1 << 20
BASE = 160 * MIB  # of the server process with some hundred connections
EACH = 16 << 10  # bytes that an idle connection may cost


def test_row_1_connections_that_send_nothing(start: Start, held: Held) -> None:
    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        with crowd(1100, lambda: connected(server.url), reads=True):
            yield

    with start(open_files=1024) as server:
        held(server, Attack(name="row 1 silent connections", go=go, memory_bytes=BASE + 1024 * EACH))


def test_row_3_streams_that_nobody_reads(start: Start, held: Held) -> None:
    parameters = {**GREEDY, "max_tokens": 1500, "n": 2, "logprobs": True, "top_logprobs": 20}
    asked = posted("/chat", {"inputs": [{"text": "Hi"}], "parameters": parameters, "stream": True})

    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        def join() -> socket.socket:
            sock = connected(server.url, receive_buffer=2048)
            say(sock, asked)
            return sock

        with crowd(4, join, reads=False):
            yield

    with start("--max-requests", "8") as server:
        held(server, Attack(name="row 3 unread streams", go=go, memory_bytes=BASE + 256 * MIB))


def test_row_3_bodies_that_stop(start: Start, held: Held) -> None:
    body = all_but_one_byte(63 * MIB)

    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        def join() -> socket.socket:
            sock = connected(server.url)
            say(sock, body)
            return sock

        with crowd(17, join, reads=True):
            yield

    with start() as server:
        held(server, Attack(name="row 3 stopped bodies", go=go, memory_bytes=BASE + 1024 * MIB + 256 * MIB))


def test_row_4_answers_that_nobody_reads(start: Start, held: Held) -> None:
    """Whole ones: each is some megabytes of log-probabilities, and the unread ones are more than the bound."""
    parameters = {**GREEDY, "max_tokens": 1000, "n": 2, "logprobs": True, "top_logprobs": 20}
    asked = posted("/chat", {"inputs": [{"text": "Hi"}], "parameters": parameters})

    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over = threading.Event()

        def flood() -> None:
            with contextlib.ExitStack() as stack:
                while not over.is_set():
                    sock = connected(server.url, receive_buffer=2048)
                    stack.callback(sock.close)
                    say(sock, asked)
                    over.wait(10.0)

        with until_over([flood], over):
            yield

    with start("--max-unread-mib", "2") as server:
        held(server, Attack(name="row 4 unread answers", go=go, memory_bytes=BASE))


def test_row_5_heads_without_an_end(start: Start, held: Held) -> None:
    heads = [b"GET /health/live HTTP/1.1\r\nHost: a\r\nx: " + b"a" * (120 * MIB), b"GET /" + b"a" * (40 * MIB)]

    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over = threading.Event()

        def flood(data: bytes) -> None:
            while not over.is_set():
                with contextlib.closing(connected(server.url)) as sock:
                    say(sock, data)
                over.wait(0.05)

        with until_over([partial(flood, data) for data in heads * 2], over):
            yield

    with start() as server:
        held(server, Attack(name="row 5 endless heads", go=go, memory_bytes=BASE))


# ---- honest clients


def lives(sock: socket.socket) -> bool:
    """What /health/live answers over a kept connection."""
    say(sock, b"GET /health/live HTTP/1.1\r\nHost: a\r\n\r\n")
    heard = b""
    while b'{"status":"live"}' not in heard:
        more = sock.recv(4096)
        if not more:
            return False
        heard += more
    return heard.startswith(b"HTTP/1.1 200")


def test_a_thousand_resting_connections_beside_sixteen_busy_ones(start: Start) -> None:
    with start() as server, contextlib.ExitStack() as stack:
        resting = [stack.enter_context(contextlib.closing(connected(server.url))) for _ in range(1000)]
        for sock in resting:
            assert lives(sock)
        statuses: list[int] = []

        def busy() -> None:
            with httpx.Client(base_url=server.url, timeout=60) as http:
                for _ in range(5):
                    body = {"inputs": [{"text": "Hi"}], "parameters": GREEDY}
                    statuses.append(http.post("/chat", json=body).status_code)

        threads = [threading.Thread(target=busy) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert statuses == [200] * 80
        assert server.metric("http_connections") >= 1000, "none of them was closed"
        for sock in resting:
            assert lives(sock)


def test_64_mib_over_a_line_of_1_mb_a_second(start: Start) -> None:
    """The largest body: it is read whole, and refused only for what stands in it."""
    with start() as server, contextlib.closing(connected(server.url)) as sock:
        sock.sendall(head("/chat", 64 * MIB))
        content = b'{"inputs": [{"text": "Hi"}], "parameters": {"max_tokens": 2}}'.ljust(64 * MIB)
        begun = time.monotonic()
        for i in range(0, len(content), 100_000):
            sock.sendall(content[i : i + 100_000])
            time.sleep(max(0.0, begun + (i + 100_000) / 1e6 - time.monotonic()))
        answer = sock.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400") and b'"code":"too_many_values"' in answer, "64 MiB of blanks"


@pytest.mark.parametrize(("pause", "rate"), [(20.0, None), (0.0, 4000)], ids=["a laptop sleeps", "slow all along"])
def test_a_stream_that_is_read_late_is_whole(start: Start, pause: float, rate: int | None) -> None:
    parameters = {**GREEDY, "max_tokens": 3000 if rate is None else 100, "logprobs": True, "top_logprobs": 20}
    body: dict[str, Any] = {"inputs": [{"text": "Hi"}], "parameters": parameters, "stream": True}
    with start() as server, contextlib.closing(connected(server.url, receive_buffer=2048)) as sock:
        say(sock, posted("/chat", body))
        heard = bytearray(sock.recv(1000))
        time.sleep(pause)
        while not heard.endswith(b"0\r\n\r\n"):
            more = sock.recv(1 << 16 if rate is None else rate // 10)
            assert more, "the stream was cut"
            heard += more
            time.sleep(0 if rate is None else len(more) / rate)
        assert b'"completion_tokens":%d' % parameters["max_tokens"] in heard and b"data: [DONE]" in heard
        assert json.dumps("error") not in heard.decode()
