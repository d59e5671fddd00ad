"""Clients that only connect, that stop sending, that do not read, or whose head has no end: others are answered."""

import contextlib
import os
import resource
import signal
import socket
from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, in_order
from tests.e2e.running import RunningServer, until
from tests.hostile.clients import all_but_one_byte, connected, posted, say
from tests.hostile.loop_block import loop_of
from tests.hostile.measure import pss_bytes

pytestmark = pytest.mark.process

OPEN_FILES = 256
FLAGS = {
    "--receive-seconds": 2, "--send-seconds": 1, "--max-inflight-mib": 8, "--max-body-mib": 2, "--max-requests": 2,
    "--max-unread-mib": 16, "--workers": 1,
}  # fmt: skip
BLOCK = 0.05  # seconds of processor time


@pytest.fixture(scope="module")
def bounded_server(start: Start) -> Iterator[RunningServer]:
    flags = [str(word) for pair in FLAGS.items() for word in pair]
    with start(*flags, open_files=OPEN_FILES) as server:
        yield server


@pytest.fixture
def bounded(bounded_server: RunningServer) -> Iterator[RunningServer]:
    """A server with small bounds and few descriptors; after each test nothing is held and nobody is connected."""
    yield from in_order(bounded_server)
    until("nobody else is connected", lambda: bounded_server.metric("http_connections") == 1)


@pytest.fixture
def socks() -> Iterator[list[socket.socket]]:
    """The attackers' sockets."""
    socks: list[socket.socket] = []
    yield socks
    for sock in socks:
        sock.close()


def rejected(server: RunningServer, reason: str) -> float:
    return server.metric(f'mm_rejected_total{{reason="{reason}"}}')


def ask(server: RunningServer) -> None:
    answer = server.chat({"text": "Hi"}, **GREEDY)
    assert answer.status_code == 200, answer.text


def test_more_connections_than_descriptors(bounded: RunningServer, socks: list[socket.socket]) -> None:
    with loop_of(bounded.url, bounded.pid) as longest:
        for _ in range(2 * OPEN_FILES):
            with contextlib.suppress(OSError):
                socks.append(connected(bounded.url))
        os.kill(bounded.children("worker")[0], signal.SIGKILL)
        until("another worker", lambda: bounded.metric('children_up{role="worker"}') == 1)
        ask(bounded)
        assert len(os.listdir(f"/proc/{bounded.pid}/fd")) < OPEN_FILES - 20
        until("all are closed", lambda: bounded.metric("http_connections") == 2)
    longest.assert_within(BLOCK)
    ended = rejected(bounded, "connections_full") + rejected(bounded, "head_timeout")
    assert ended >= len(socks) > 3 * OPEN_FILES // 2 and rejected(bounded, "connections_full") >= OPEN_FILES


def test_no_descriptor_at_all(bounded: RunningServer) -> None:
    """Whoever took them: the server lives, says what it cannot do, and starts the child once it can."""
    assert bounded.ready() == 200
    few = len(os.listdir(f"/proc/{bounded.pid}/fd"))
    resource.prlimit(bounded.pid, resource.RLIMIT_NOFILE, (few - 2, OPEN_FILES))
    os.kill(bounded.children("worker")[0], signal.SIGKILL)
    until("it is tried", lambda: bounded.err.count("a worker cannot be started now (Too many open files)") >= 2)
    assert bounded.http.get("/metrics").status_code == 200
    resource.prlimit(bounded.pid, resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    until("another worker", lambda: bounded.metric('children_up{role="worker"}') == 1)


def test_bodies_that_stop_one_byte_before_their_end(bounded: RunningServer, socks: list[socket.socket]) -> None:
    before = rejected(bounded, "body_timeout") + rejected(bounded, "bodies_full")
    with loop_of(bounded.url, bounded.pid) as longest:
        for _ in range(6):
            socks.append(connected(bounded.url))
            say(socks[-1], all_but_one_byte(2 << 20))
        ask(bounded)
        until("none is held", lambda: bounded.metric("mm_inflight_bytes") == 0)
        ask(bounded)
    longest.assert_within(BLOCK)
    until("all are told", lambda: rejected(bounded, "body_timeout") + rejected(bounded, "bodies_full") >= before + 6)
    told = [sock.recv(1 << 12).decode() for sock in socks]
    full = [one for one in told if one.startswith("HTTP/1.1 429 ")]
    assert full and all("retry-after: " in one.lower() for one in full), told


def test_streams_that_nobody_reads(bounded: RunningServer, socks: list[socket.socket]) -> None:
    """They have both places; kernel and send buffer take what the engine says, and then they are ended."""
    parameters = {"max_tokens": 30000, "temperature": 0, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
    body = {"inputs": [{"text": "Hi"}], "parameters": parameters, "stream": True}
    for _ in range(2):
        socks.append(connected(bounded.url, receive_buffer=2048))
        say(socks[-1], posted("/chat", body))
    until("both run", lambda: bounded.metric("num_requests_running") == 2)
    assert bounded.chat({"text": "Hi"}, **GREEDY).status_code == 429
    until("both are ended", lambda: rejected(bounded, "unread") == 2)
    until("neither runs", lambda: bounded.metric("num_requests_running") == 0)
    assert bounded.metric("mm_unread_bytes") == 0
    ask(bounded)

    def lines() -> list[str]:
        return [line for line in bounded.err.splitlines() if "error=unread" in line]

    until("a thread has written both lines", lambda: len(lines()) == 2)
    assert all(" WARNING " in line and "POST /chat 200" in line for line in lines())


def test_a_head_without_an_end(bounded: RunningServer, socks: list[socket.socket]) -> None:
    memory = pss_bytes(bounded.pid)
    with loop_of(bounded.url, bounded.pid) as longest:
        for begin in [b"GET /health/live HTTP/1.1\r\nHost: a\r\nx: ", b"GET /"] * 4:
            socks.append(connected(bounded.url))
            say(socks[-1], begin + b"a" * (10 << 20))
        ask(bounded)
    longest.assert_within(BLOCK)
    assert pss_bytes(bounded.pid) - memory < 32 << 20, "of 80 MiB"
    assert bounded.metric('http_requests_total{method="other",route="malformed",status="431"}') >= 8
