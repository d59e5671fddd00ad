"""Bodies and answers that are made to cost, at full scale, beside a second client of the same address."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer
from tests.hostile.conftest import Held
from tests.hostile.measure import Attack

pytestmark = pytest.mark.long

MIB = 1 << 20
SERVER_BYTES = 256 * MIB  # of a server without a large body
BODY_BYTES = 3 * 64 * MIB  # what one body of 64 MiB is at most: as it came, parsed, packed for a worker
ATTACKERS = 2
JSON = {"content-type": "application/json"}
EXCHANGE = b'{"inputs":[{"text":""}],"text":""},'


def posting(
    name: str,
    url: str,
    body: Callable[[], bytes],
    expected: int,
    headers: dict[str, str] | None = None,
    n: int = ATTACKERS,
) -> Attack:
    """The same body again and again, over `n` connections; its answer is always `expected`."""

    @contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over, seen, content = threading.Event(), list[int](), body()

        def attack() -> None:
            with httpx.Client(base_url=server.url, timeout=120) as http:
                while not over.is_set():
                    seen.append(http.post(url, content=content, headers=headers or JSON).status_code)

        with attackers(attack, over, n):
            yield
        assert len(seen) >= n and set(seen) == {expected}, sorted(set(seen))

    return Attack(name=name, go=go, memory_bytes=SERVER_BYTES + n * BODY_BYTES)


@contextmanager
def attackers(attack: Callable[[], None], over: threading.Event, n: int) -> Iterator[None]:
    threads = [threading.Thread(target=attack) for _ in range(n)]
    with contextlib.ExitStack() as stack:
        for thread in threads:
            thread.start()
            stack.callback(thread.join)
        stack.callback(over.set)
        yield


def chat(**parameters: object) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "x"}], **parameters}).encode()


LARGE = {"n": 8, "max_tokens": 2500, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}
EVIL = {"host": "evil.example", "content-type": "text/plain"}
ATTACKS: Sequence[Attack] = (
    posting("row 4 echo", "/chat", lambda: b'{"inputs":[],"' + b"\\u0001" * (20 * MIB // 6) + b'":1}', 400),
    posting("row 6 exchanges", "/chat", lambda: b'{"history":[' + EXCHANGE * (63 * MIB // 35) + b"{}]}", 400),
    posting("row 6 lists", "/chat", lambda: b"[" + b"[]," * (4 * MIB) + b"[]]", 400),
    posting("row 6 pictures", "/chat", lambda: b"[" + b'{"image":"a"},' * 32000 + b'{"image":"a"}]', 400),
    posting("row 10 names", "/chat", lambda: b"{}", 403, EVIL),
    posting("row 12 path", "/chat", lambda: b'[{"image":"' + b"ab/" * (20 * MIB) + b'"}]', 400),
    posting("row 12 percent", "/chat", lambda: b'[{"image":"data:image/png,' + b"%41" * (20 * MIB) + b'"}]', 400),
    # One at a time: two would fill the engine's places, which are first come, first served.
    posting("row 13 answers", "/v1/chat/completions", lambda: chat(**LARGE), 200, n=1),
)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_others_are_answered(
    start: Start, held: Held, tmp_path_factory: pytest.TempPathFactory, attack: Attack
) -> None:
    with start("--allow-media-root", str(tmp_path_factory.mktemp("media"))) as server:
        held(server, attack)
