"""A second request with the same medium, over a running server: what it costs, who shares it, and what a death does."""

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, data_url, picture, until

pytestmark = pytest.mark.process

CHAT = "/v1/chat/completions"
KEYS = ("sk-one-geheim", "sk-two-geheim")
HITS, QUERIES, BYTES = "mm_cache_hits_total", "mm_cache_queries_total", "mm_cache_bytes"


def body(seed: int, size: tuple[int, int] = (240, 160), **beside: Any) -> dict[str, Any]:
    """A question about a picture of its own."""
    content = [
        {"type": "image_url", "image_url": {"url": data_url(picture(*size, seed))}},
        {"type": "text", "text": "what is it?"},
    ]
    return {
        "messages": [{"role": "user", "content": content}], "max_tokens": 12, "temperature": 0, "ignore_eos": True,
        "logprobs": True, **beside,
    }  # fmt: skip


def ask(server: RunningServer, body: dict[str, Any], key: str = "") -> Any:
    """What a client sees of the answer, without its id and time."""
    found = server.http.post(CHAT, json=body, headers={"Authorization": f"Bearer {key}"} if key else {})
    assert found.status_code == 200, found.text
    return found.json()["choices"]


def first_logprob(choices: Any) -> float:
    return float(choices[0]["logprobs"]["content"][0]["logprob"])


def hits(server: RunningServer, body: dict[str, Any], key: str = "") -> tuple[float, float]:
    """(items that were asked for, items that were there) of one request."""
    before = server.metric(QUERIES), server.metric(HITS)
    ask(server, body, key)
    return server.metric(QUERIES) - before[0], server.metric(HITS) - before[1]


@pytest.fixture(scope="module")
def server(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Two clients, each with a key, and room for the embeddings of a few large pictures."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text("\n".join(KEYS))
    with start("--workers", "1", "--threads", "1", "--embedding-mib", "1", "--api-key-file", str(file)) as server:
        server.http.headers["Authorization"] = f"Bearer {KEYS[0]}"
        yield server


def test_a_second_identical_request_leases_nothing_and_encodes_nothing(server: RunningServer) -> None:
    first = ask(server, body(1))
    stage = 'mm_preprocess_seconds_count{modality="image",stage="%s"}'
    costs = 'engine_step_seconds_count{stage="encode"}', stage % "write", stage % "decode"
    server.assert_nothing_held()  # what is given back is renamed
    before = [server.metric(cost) for cost in costs]
    files = sorted(os.listdir(server.root))
    assert min(before) > 0 and server.metric(BYTES) > 0
    assert hits(server, body(1)) == (1, 1) and ask(server, body(1)) == first
    assert [server.metric(cost) for cost in costs] == before
    assert sorted(os.listdir(server.root)) == files, "no segment was made or renamed"
    assert ask(server, body(2)) != first and server.metric(costs[0]) == before[0] + 1, "another picture is encoded"
    assert "encoder outputs stay for each API key alone, within 1 MiB (--embedding-mib)" in server.out
    shown = server.out + server.err + server.http.get("/metrics").text + str(first)
    assert not re.search("[0-9a-f]{32}", shown), "no content key, and no salt"
    server.assert_nothing_held()


def test_a_second_hit_alone_is_the_first_bit_for_bit(server: RunningServer) -> None:
    """One thread, and the same blocks and embeddings: every log-probability of both, to its last digit."""
    same = body(77, logprobs=True, top_logprobs=5, cache_salt="alone")
    found = [server.http.post(CHAT, json=same).json() for _ in range(3)]
    cold, first, second = (answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in found)
    assert cold == 0 and first == second > 0
    assert found[1]["choices"] == found[2]["choices"]


def test_who_shares(server: RunningServer) -> None:
    said = ask(server, body(3))
    assert hits(server, body(3)) == (1, 1) and hits(server, body(3, cache_salt="a")) == (1, 0)
    assert hits(server, body(3, cache_salt="a")) == (1, 1) and hits(server, body(3, cache_salt="b")) == (1, 0)
    assert ask(server, body(3, cache_salt="a")) == said
    assert hits(server, body(3), KEYS[1]) == (1, 0) and hits(server, body(3), KEYS[1]) == (1, 1)
    routes = ((CHAT, body(3)), ("/v1/completions", {"prompt": "x"}), ("/chat", {"inputs": [{"text": "x"}]}))
    for url, asked in routes:
        for salt in ("", 7):
            refused = server.http.post(url, json={**asked, "cache_salt": salt})
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "cache_salt"
        assert server.http.post(url, json={**asked, "cache_salt": "s"}).status_code == 200


def test_many_pictures_in_little_room(server: RunningServer) -> None:
    """Six of them fit. Whatever goes while somebody comes for it, each answer is that of its own picture."""
    asked = [body(10 + i, size=(900, 600), max_tokens=1) for i in range(8)]
    said = [first_logprob(ask(server, one)) for one in asked]
    assert min(abs(a - b) for a, b in combinations(said, 2)) > 2e-3
    before = server.metric(HITS)
    order = np.random.default_rng(0).integers(0, len(asked), 24).tolist()
    with ThreadPoolExecutor(6) as clients:
        found = list(clients.map(lambda i: first_logprob(ask(server, asked[i])), order))
    assert found == pytest.approx([said[i] for i in order], abs=5e-4)
    assert server.metric(HITS) > before and 0 < server.metric(BYTES) <= 1 << 20
    server.assert_nothing_held()


def test_an_engine_that_was_killed_has_nothing_and_nobody_is_told_otherwise(server: RunningServer) -> None:
    said = ask(server, body(4))
    assert hits(server, body(4)) == (1, 1)
    (engine,) = server.children("engine")
    os.kill(engine, signal.SIGKILL)
    until("another engine", lambda: server.metric('child_restarts_total{role="engine"}') >= 1)
    assert server.metric(BYTES) == 0 and ask(server, body(4)) == said
    assert hits(server, body(4)) == (1, 1)
    server.assert_nothing_held()
