"""A server that bounds what a key may ask for: two keys, OpenAI's client, streams that end or are left."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, until

pytestmark = pytest.mark.process

KEYS = {"a": "sk-a-geheim", "b": "sk-b-geheim", "b-next": "sk-b-next-geheim"}  # the last two have one label
CHAT: Any = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
LONG: Any = {**CHAT, "n": 4, "max_tokens": 30000, "ignore_eos": True, "stream": True}
PER_MINUTE = 6


@pytest.fixture(scope="module")
def limited(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file: Path = tmp_path_factory.mktemp("limited") / "keys"
    file.write_text(f"{KEYS['a']}\nteam-b {KEYS['b']}\nteam-b {KEYS['b-next']}\n")
    flags = ["--workers", "1", "--api-key-file", str(file), "--allowed-origins", "http://page.example"]
    with start(*flags, "--key-requests-per-minute", str(PER_MINUTE), "--key-concurrency", "2") as server:
        yield server


def of(server: RunningServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEYS[key]}"}, timeout=60)


def test_two_keys_with_openais_client(limited: RunningServer) -> None:
    """What computes takes a token, whoever looks on does not; one key that has none left does not stop another."""
    with openai.OpenAI(base_url=f"{limited.url}/v1", api_key=KEYS["a"], max_retries=0) as client:
        chats = client.chat.completions.with_raw_response
        first = chats.create(**CHAT)
        assert first.parse().usage is not None
        shown = [first.headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining", "reset")]
        assert shown == [str(PER_MINUTE), str(PER_MINUTE - 1), f"{60 // PER_MINUTE}s"]
        streamed = chats.create(**CHAT, stream=True)
        assert streamed.headers["x-ratelimit-remaining-requests"] == str(PER_MINUTE - 2) and list(streamed.parse())
        assert "x-ratelimit-limit-requests" not in client.models.with_raw_response.list().headers
        with of(limited, "a") as http:
            for path in ("/metrics", "/health", "/version"):
                assert "x-ratelimit-limit-requests" not in http.get(path).headers
            counted = http.post("/tokenize", json={"messages": CHAT["messages"]})  # a worker makes its prompt
            assert counted.headers["x-ratelimit-remaining-requests"] == str(PER_MINUTE - 3)
            bad = http.post("/chat", content=b"{", headers={"Content-Type": "application/json"})
            assert (bad.status_code, bad.headers["x-ratelimit-remaining-requests"]) == (400, str(PER_MINUTE - 4))
        for _ in range(PER_MINUTE):  # a token may have come back meanwhile
            try:
                client.chat.completions.create(**CHAT)
            except openai.RateLimitError as error:
                refused = error
        assert refused.code == "rate_limit_exceeded" and refused.type == "rate_limit_error"
        assert 1 <= int(refused.response.headers["retry-after"]) <= 60 // PER_MINUTE
        assert refused.response.headers["x-ratelimit-remaining-requests"] == "0"
    with of(limited, "b") as http:
        assert http.post("/v1/chat/completions", json=CHAT).status_code == 200
        told = re.findall(r'mm_rejected_total{reason="rate_limit_exceeded"} (\d+)', http.get("/metrics").text)
        assert len(told) == 1 and int(told[0]) >= 3


def test_a_stream_holds_its_place_until_it_ends_or_its_client_leaves(limited: RunningServer) -> None:
    """Two keys of one label share it: whoever takes a new key has no second allowance."""
    with of(limited, "b") as one, of(limited, "b-next") as other:
        asked = ("POST", "/v1/chat/completions")
        with one.stream(*asked, json=LONG) as left, other.stream(*asked, json=LONG) as also:
            pieces = [left.iter_bytes(), also.iter_bytes()]  # one that is let go of closes its connection
            assert all(next(piece) for piece in pieces)
            refused = one.post("/v1/chat/completions", json=CHAT)
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "concurrency_limit_exceeded")
            again = other.post("/v1/chat/completions", json=CHAT, headers={"Origin": "http://page.example"})
            assert again.status_code == 429 and again.headers["retry-after"] == "1"
            left_of = "x-ratelimit-remaining-requests"
            assert int(again.headers[left_of]) >= int(refused.headers[left_of])  # neither took a token
            assert {"retry-after", left_of} <= set(again.headers["access-control-expose-headers"].lower().split(", "))
        until("both places came back", lambda: one.post("/v1/chat/completions", json=CHAT).status_code == 200)
    assert "geheim" not in limited.out + limited.err and "team-b" not in limited.out + limited.err
