"""One client holds all bytes of bodies, or has large ones read: another one's chats are answered beside it."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY
from tests.e2e.running import RunningServer, data_url, picture, until
from tests.hostile.clients import connected, head, say
from tests.hostile.conftest import Held
from tests.hostile.measure import Attack, Scale
from tests.hostile.posting import JSON, MIB, SERVER_BYTES, posting, until_over
from tests.hostile.test_asked import SCALES

pytestmark = pytest.mark.process

OTHER = "127.0.0.2"
INFLIGHT = 64  # MiB of all bodies
BODIES = [8 << 20] * 8 + [1 << n for n in range(22, 13, -1) for _ in range(2)]  # bytes, of chats that fill it
LARGE = 8
DRAWN = {"draw_boxes": True}


def chat(nbytes: int, parameters: dict[str, Any]) -> bytes:
    """With a picture that has zeros behind it, so that its body has about so many bytes."""
    url = data_url(picture(56, 56) + b"\0" * ((nbytes - 16384) * 3 // 4))
    return json.dumps({"inputs": [{"image": url}, {"text": "x"}], "parameters": parameters, "stream": True}).encode()


@contextlib.contextmanager
def holding(server: RunningServer, killed: set[int]) -> Iterator[None]:
    """Long answers to chats of all sizes, of which each is asked again when it was refused."""
    over, sending, came = threading.Event(), threading.Lock(), [0] * len(BODIES)

    def ask(i: int) -> None:
        content = chat(BODIES[i], {"max_tokens": 3900, "ignore_eos": True})
        with httpx.Client(base_url=server.url, timeout=120) as http:
            while not over.is_set():
                with contextlib.ExitStack() as stack:
                    with sending:  # beside each other none of them would become whole
                        answer = stack.enter_context(http.stream("POST", "/chat", content=content, headers=JSON))
                    came[i] += 1
                    for _ in answer.iter_raw():
                        if over.is_set():
                            return
                over.wait(0.2)

    with until_over([lambda i=i: ask(i) for i in range(len(BODIES))], over):  # type: ignore[misc]
        until("each was answered or refused", lambda: all(came))
        yield


FLAGS = ["--max-inflight-mib", str(INFLIGHT), "--max-body-mib", "8", "--max-seqs", str(len(BODIES) + 8)]


@pytest.mark.faults
def test_row_4_whole_chats_leave_room_for_others(start: Start) -> None:
    with start(*FLAGS) as server:
        with (
            holding(server, set()),
            httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), base_url=server.url, timeout=300) as http,
        ):
            answers = [http.post("/chat", content=chat(1 << 18, GREEDY), headers=JSON) for _ in range(20)]
        assert [answer.status_code for answer in answers] == [200] * 20
        until("all is let go", lambda: not server.metric("mm_inflight_bytes"))
        server.assert_nothing_held()


@pytest.mark.long
def test_row_4_a_second_client_is_answered_in_time(start: Start, held: Held) -> None:
    most = SERVER_BYTES + 4 * INFLIGHT * MIB
    with start(*FLAGS) as server:
        held(server, Attack(name="row 4 whole chats", go=holding, memory_bytes=most, late=2.0, second=(OTHER,)))


@pytest.mark.faults
def test_a_body_that_pauses_is_not_ended_for_a_client_beyond_its_share(start: Start) -> None:
    content = chat(1 << 15, GREEDY)
    with start(*FLAGS) as server, contextlib.ExitStack() as stack:
        slow = stack.enter_context(contextlib.closing(connected(server.url, source=OTHER)))
        slow.sendall(head("/chat", len(content)) + content[:-1])
        threading.Event().wait(2.0)  # by so much it lags
        for _ in range(4 * INFLIGHT):
            greedy = stack.enter_context(contextlib.closing(connected(server.url)))
            say(greedy, head("/chat", MIB) + content[:100] + b" " * (MIB // 2))
        until("no more fits", lambda: server.metric("mm_inflight_bytes") > (INFLIGHT - 1) * MIB)
        slow.sendall(content[-1:])
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def slashes(mib: int) -> bytes:
    """A picture as PHP writes it, `\\/` for each slash, of so many MiB."""
    return b'{"inputs":[{"image":"data:image/png;base64,' + b"\\/" * (mib * MIB // 2) + b'"},{"text":"x"}]}'


@pytest.mark.faults
def test_row_5_a_large_body_waits_for_no_line_of_another_clients(start: Start) -> None:
    """Eight of 57 MiB that are all escapes become whole at once: the second client's is not read behind them."""
    large, answered = slashes(57), list[bytes]()

    def finish(sock: socket.socket) -> None:
        sock.sendall(large[-1:])
        answered.append(sock.recv(1 << 16)[:12])

    with start() as server, contextlib.ExitStack() as stack, ThreadPoolExecutor(LARGE) as pool:
        socks = [stack.enter_context(contextlib.closing(connected(server.url))) for _ in range(LARGE)]
        for sock in socks:
            sock.settimeout(300)
            sock.sendall(head("/chat", len(large)) + large[:-1])
        until("they are here", lambda: server.metric("mm_inflight_bytes") >= LARGE * (len(large) - 1))
        finished = [pool.submit(finish, sock) for sock in socks]
        until("they are whole", lambda: server.metric("mm_inflight_bytes") != LARGE * (len(large) - 1))
        with httpx.Client(transport=httpx.HTTPTransport(local_address=OTHER), base_url=server.url, timeout=300) as http:
            assert http.post("/chat", content=chat(MIB * 13 // 10, GREEDY), headers=JSON).status_code == 200
        passed = len(answered)
        for one in finished:
            one.result()
    assert set(answered) == {b"HTTP/1.1 400"} and passed <= 2, "what was near its end may pass"


@pytest.mark.parametrize("scale", SCALES)
def test_row_6_a_long_content_type_is_not_taken_to_pieces(start: Start, held: Held, scale: Scale) -> None:
    headers = {"content-type": "multipart/form-data" + ";" * 60_000}
    with start() as server:
        held(server, posting("row 6 content type", "/v1/audio/transcriptions", lambda: b"", 431, headers, n=8), scale)
