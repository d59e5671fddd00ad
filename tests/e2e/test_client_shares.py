"""One client holds every place: another one's chats are answered all the same, and somebody is told to give way."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, LONG
from tests.e2e.running import RunningServer, until
from tests.hostile.clients import connected, posted, say

pytestmark = pytest.mark.process

OTHER = "127.0.0.2"
HOLDS = {"max_tokens": 4095, "n": 8, "ignore_eos": True}
SOCKETS = 12  # with 64 prompts each: all 768 places


def inside(server: RunningServer) -> int:
    return int(server.http.get("/health/ready").json()["requests"])


@contextlib.contextmanager
def holding(server: RunningServer, n: int, each: int = 64) -> Iterator[list[socket.socket]]:
    """So many connections of one client that ask for much, with so many places each, and read nothing."""
    asked = posted("/v1/completions", {**HOLDS, "prompt": [[1]] * each})
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(contextlib.closing(connected(server.url))) for _ in range(n)]
        for sock in socks:
            say(sock, asked)
        until("every place is taken", lambda: inside(server) == each * n)
        yield socks


def chats(server: RunningServer, n: int) -> list[httpx.Response]:
    """Of a second client, in turn."""
    body = {"inputs": [{"text": "Hi"}], "parameters": GREEDY}
    with httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), base_url=server.url, timeout=60) as http:
        return [http.post("/chat", json=body) for _ in range(n)]


def error_of(body: str) -> Any:
    return json.loads(body)["error"]["code"]


def test_a_second_client_is_answered_beside_twelve_idle_sockets(server: RunningServer) -> None:
    names = [f'client_share_gave_way_total{{of="{what}"}}' for what in ("places", "seats")]
    names += [f'client_share_wait_seconds_count{{share="{share}"}}' for share in ("first", "within")]
    until("nobody is inside", lambda: inside(server) == 0)
    before = [server.metric(name) for name in names]
    with holding(server, SOCKETS) as socks:
        assert [answer.status_code for answer in chats(server, 5)] == [200] * 5
        said = socks[-1].recv(1 << 16).decode()  # the youngest body, as a whole
        assert said.startswith("HTTP/1.1 429 ") and error_of(said.partition("\r\n\r\n")[2]) == "gave_way"
        assert "retry-after: 1" in said.lower()
        places, seats, first, within = (server.metric(name) - past for name, past in zip(names, before, strict=True))
        assert places == 64 and seats > 0 and first >= 5
        assert within > 0, "of the one that was alone"
        assert inside(server) == 64 * (SOCKETS - 1)
    until("all is let go", lambda: inside(server) == 0)
    server.assert_nothing_held()


def test_with_shares_off_a_second_client_is_refused(small: RunningServer) -> None:
    with holding(small, 1, each=8):
        (refused,) = chats(small, 1)
        assert (refused.status_code, error_of(refused.text)) == (429, "queue_full")
        assert small.metric('client_share_gave_way_total{of="places"}') == 0
    until("all is let go", lambda: inside(small) == 0)


@pytest.mark.faults
def test_a_stream_that_has_its_status_but_no_token_ends_with_an_error_event(start: Start) -> None:
    """Its status and a comment go out after fifteen seconds in which others of its client had the engine's places."""
    message = posted("/chat", {"inputs": [{"text": "Hi"}], "parameters": LONG, "stream": True})
    with start("--max-requests", "3", "--max-seqs", "2") as server, contextlib.ExitStack() as stack:
        *run, waits = (stack.enter_context(contextlib.closing(connected(server.url))) for _ in range(3))
        for sock in run:
            say(sock, message)
            assert sock.recv(1 << 10).startswith(b"HTTP/1.1 200")
            reader = threading.Thread(target=read_to_the_end, args=(sock,))
            reader.start()
            stack.callback(reader.join)
            stack.callback(sock.shutdown, socket.SHUT_RDWR)
        say(waits, message)
        assert waits.recv(1 << 10).startswith(b"HTTP/1.1 200")
        assert [answer.status_code for answer in chats(server, 1)] == [200]
        said = read_to_the_end(waits)
        assert b'"code":"gave_way"' in said and said.count(b"data: ") == 1, said


def read_to_the_end(sock: socket.socket) -> bytes:
    """What comes to the end of the answer, or of the connection."""
    sock.settimeout(60)
    said = b""
    while (piece := sock.recv(1 << 16)) and not piece.endswith(b"0\r\n\r\n"):
        said = (said + piece)[-(1 << 16) :]
    return said + piece
