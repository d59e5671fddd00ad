"""Bodies that ask for much in few bytes, and bodies of padding: a second client is answered beside them all."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY
from tests.e2e.running import RunningServer, until
from tests.hostile.clients import connected, head
from tests.hostile.conftest import Held
from tests.hostile.measure import COUNTED, FULL, Attack, Scale
from tests.hostile.posting import ATTACKERS, MIB, SERVER_BYTES, posting, stops, until_over, words

pytestmark = pytest.mark.process

SCALES = [
    pytest.param(COUNTED, marks=pytest.mark.faults, id="short"),
    pytest.param(FULL, marks=pytest.mark.long, id="full"),
]
PROMPTS = 64
PADDED = 16  # bodies of 64 MiB: what all bodies together may have by default


def completion(prompt: str = "a", **parameters: Any) -> bytes:
    return json.dumps({"prompt": [prompt] * PROMPTS, "max_tokens": 1, **parameters}, ensure_ascii=False).encode()


def scored(n: int) -> bytes:
    """98 KB: the row's body had 518,112 log-probabilities by the count of its time, and gives 16.4 million."""
    return completion("🙂" * 380, n=n, max_tokens=4, echo=True, logprobs=20)


BODIES: dict[str, tuple[Callable[[], bytes], int, int]] = {  # the body, its status, how many come at once
    "row 2 bad words": (lambda: completion(bad_words=words(128, 256)), 400, 12),
    "row 2 stop strings": (lambda: completion(n=8, stop=stops(16, 1024)), 200, ATTACKERS),
    "row 7 scored prompts": (lambda: scored(8), 400, ATTACKERS),
}


@pytest.fixture(scope="module")
def asked(start: Start) -> Iterator[RunningServer]:
    with start("--workers", "1") as server:
        yield server


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_asks_for_much_keeps_nobody_waiting(
    asked: RunningServer, held: Held, name: str, scale: Scale
) -> None:
    body, status, n = BODIES[name]
    held(asked, posting(name, "/v1/completions", body, status, n=n), scale)


def padded() -> bytes:
    """A chat with a long answer in 64 MiB, all but some hundred bytes of them in a field that nobody reads."""
    chat = {"messages": [{"role": "user", "content": "Hi"}], **GREEDY, "max_tokens": 3000}
    body = {**chat, "stream": True, "user": ""}
    return json.dumps(body)[:-2].encode().ljust(64 * MIB - 2, b"A") + b'"}'


@contextlib.contextmanager
def padding(server: RunningServer, killed: set[int]) -> Iterator[None]:
    """Sixteen such chats are being answered all the time; of those that follow one is sent at a time."""
    body, over, sending, answered = padded(), threading.Event(), threading.Lock(), [0] * PADDED

    def go(i: int) -> None:
        while not over.is_set():
            with contextlib.closing(connected(server.url)) as sock:
                sock.settimeout(120)  # the cache has no room for all of these answers at once
                with sending:
                    sock.sendall(head("/v1/chat/completions", len(body)))
                    sock.sendall(body)
                    assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200")
                answered[i] += 1
                while not over.is_set() and sock.recv(1 << 16):
                    pass

    with until_over([lambda i=i: go(i) for i in range(PADDED)], over):  # type: ignore[misc]
        until("all are being answered", lambda: all(answered), 200)
        yield


@pytest.mark.parametrize("scale", SCALES)
def test_row_8_bodies_of_padding_leave_room_for_others(start: Start, held: Held, scale: Scale) -> None:
    with start("--workers", "1", "--max-seqs", str(PADDED + 8)) as server:  # their places are not what this is about
        held(server, Attack(name="row 8 padding", go=padding, memory_bytes=SERVER_BYTES + 3 * 64 * MIB), scale)
