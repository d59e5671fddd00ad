"""Greedy clients, one or many, and one with small chats at another address, which is always answered, and soon."""

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from configs.settings import EMBEDDED_MODEL
from tests.e2e.faults import LARGE
from tests.e2e.running import RunningServer, data_url, picture, running, until
from tests.hostile.clients import connected, posted, say
from tests.hostile.conftest import Held
from tests.hostile.measure import FULL, MORE_SECONDS, SAME, SHORT, Attack
from tests.hostile.posting import MIB, until_over

pytestmark = [pytest.mark.long, pytest.mark.process]
OTHER = "127.0.0.2"
CLOSE = "Connection: close"
KEYS = [f"key-{i}" for i in range(9)]
HOLDS: dict[str, Any] = {"prompt": [[1]] * 64, "max_tokens": 4095, "n": 8, "ignore_eos": True}
ANSWERS: dict[str, Any] = {"max_tokens": 200, "n": 8, "ignore_eos": True}
TEXT = {"text": "tell me of ships"}
FULL_SIZE = {"image": data_url(picture(812, 812, kind="JPEG"), "jpeg")}  # 841 tokens, 1.9 MiB of shared memory


def chat(*inputs: dict[str, Any], stream: bool = False, **parameters: Any) -> dict[str, Any]:
    return {"inputs": inputs, "parameters": {**ANSWERS, **parameters}, "stream": stream}


@dataclass(frozen=True, slots=True, kw_only=True)
class Greed:
    """What comes at once: `n` connections of each client, each with the body, again once it is answered."""

    bodies: Sequence[tuple[str, dict[str, Any]]]  # the path and the body, of the connections in turn
    n: int
    addresses: Sequence[str] = (SAME,)
    keys: Sequence[str] = ()  # for each address a client of its own with each of them
    reads: bool = True  # else nothing is read, and nothing asked again
    flags: Sequence[str] = ()
    bites: int = 1  # requests inside, when the second client begins
    late: float = MORE_SECONDS  # by which no text may be later than without the attack
    every: float = 0.0  # seconds at least between two pairs of questions, where more is more than a share
    demo: bool = True  # else the tiny model, whose prompts may be longer


GREEDS = {
    "row 3 idle sockets": Greed(bodies=[("/v1/completions", HOLDS)], n=12, reads=False, bites=768),
    "row 10 small bodies": Greed(bodies=[("/chat", chat(TEXT))], n=17, bites=17),
    "8 keys": Greed(bodies=[("/v1/completions", HOLDS)], n=2, keys=KEYS[:8], bites=700, every=1.0),
    "8 addresses": Greed(
        bodies=[("/v1/completions", HOLDS)], n=2, addresses=[f"127.0.0.{i}" for i in range(3, 11)], bites=700,
        every=1.0,
    ),
    "long prompts": Greed(
        bodies=[("/v1/completions", {"prompt": [[1] * 4000] * 8, "max_tokens": 8, "ignore_eos": True})], n=12, bites=64
    ),
    "streams of 8": Greed(bodies=[("/chat", chat(TEXT, stream=True, max_tokens=2000))], n=32, bites=32),
    "streams unread": Greed(
        bodies=[("/chat", chat(TEXT, stream=True, max_tokens=4000, logprobs=True, top_logprobs=20))],
        n=32, reads=False, bites=32,
    ),
    "pictures beside texts": Greed(
        bodies=[("/chat", chat(TEXT)), ("/chat", chat({"image": LARGE}, TEXT, max_tokens=20))], n=24, bites=16
    ),
    "chats of 32 pictures": Greed(
        bodies=[("/chat", chat(*[FULL_SIZE] * 32))], n=8, flags=["--shm-mib", "128"], bites=4, demo=False
    ),
    "a full cache": Greed(
        bodies=[("/v1/completions", {**HOLDS, "max_tokens": 300})], n=4, flags=["--kv-cache-mib", "1"], bites=128
    ),
    "refused without end": Greed(
        bodies=[("/v1/completions", HOLDS), *[("/chat", chat(TEXT))] * 3], n=16, flags=["--max-requests", "64"],
        bites=64,
    ),
    "40 clients": Greed(
        bodies=[("/chat", chat(TEXT))], n=2, addresses=[f"127.0.1.{i}" for i in range(1, 41)], bites=60,
        flags=["--max-seqs", "48"],  # a seat for each: else a newcomer waits for one of their answers to end
        every=2.0, late=8.0,  # a 41st of the tokens is its share, behind the turns of others
    ),
}  # fmt: skip


def asking(
    server: RunningServer, over: threading.Event, seen: Counter[str], greed: Greed, source: str, message: bytes
) -> None:
    """One connection after the other, whatever comes of them; one alone where nothing is read."""
    while not over.is_set():
        with contextlib.closing(connected(server.url, None if greed.reads else 2048, source)) as sock:
            say(sock, message)
            sock.settimeout(0.2)
            answer = b""
            while not over.is_set():
                if not greed.reads:
                    over.wait()
                    break
                with contextlib.suppress(TimeoutError):
                    try:
                        came = sock.recv(1 << 16)
                    except ConnectionError:
                        came = b""
                    answer = (answer + came)[:12]
                    if not came:
                        break
            seen[answer[9:12].decode()] += 1


def attack_of(name: str, greed: Greed) -> Attack:
    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over, seen = threading.Event(), Counter[str]()
        attacks: list[Callable[[], None]] = []
        for source in greed.addresses:
            for key in greed.keys or [""]:
                lines = [CLOSE, *([f"Authorization: Bearer {key}"] if key else [])]
                for i in range(greed.n):
                    path, body = greed.bodies[i % len(greed.bodies)]
                    message = posted(path, body, *lines)
                    attacks.append(partial(asking, server, over, seen, greed, source, message))
        with until_over(attacks, over):
            until("it bites", lambda: requests_inside(server) >= greed.bites)
            yield
            said = {name: server.metric(f'client_share_gave_way_total{{of="{name}"}}') for name in WAYS}
        print(f"\n{name}: the attackers saw {dict(seen)}, gave way {said}")

    second = (OTHER, KEYS[8]) if greed.keys else (OTHER,)
    return Attack(name=f"shares {name}", go=go, memory_bytes=512 * MIB, late=greed.late, second=second)


WAYS = ("places", "shared_memory", "seats")


def requests_inside(server: RunningServer) -> int:
    return int(server.http.get("/health/ready").json()["requests"])


@pytest.mark.parametrize("name", GREEDS)
def test_a_second_client_is_answered(
    held: Held, request: pytest.FixtureRequest, name: str, shm_root: Path, tmp_path: Path, tiny_model: Path
) -> None:
    greed, scale = GREEDS[name], SHORT if request.config.getoption("--hostile") == "short" else FULL
    (tmp_path / "keys").write_text("\n".join(KEYS))
    flags = [*greed.flags, *(["--api-key-file", str(tmp_path / "keys")] if greed.keys else [])]
    model = EMBEDDED_MODEL if greed.demo else tiny_model
    with running(model, shm_root.with_name(f"{shm_root.name}-shares"), tmp_path / "logs", *flags) as server:
        if greed.keys:
            server.http.headers["authorization"] = f"Bearer {KEYS[8]}"
        held(server, attack_of(name, greed), replace(scale, every=max(scale.every, greed.every)))
