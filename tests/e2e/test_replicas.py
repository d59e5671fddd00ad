"""Two servers of the embedded model behind deploy/nginx-replicas.conf: who gets what, and what one takes with it."""

import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from shm.sweep import sweep
from tests.e2e.conftest import NAME
from tests.e2e.nginx import Front, in_front, needs_nginx
from tests.e2e.running import REPO, RunningServer, children_of, data_url, is_gone, picture, running, until

pytestmark = pytest.mark.process

CONFIG = REPO / "deploy" / "nginx-replicas.conf"
PAGE = REPO / "docs" / "behind-a-proxy.md"
FLAGS = ("--workers", "1", "--max-seqs", "2", "--allowed-host", NAME)
PICTURES = [data_url(picture(224, 224, seed)) for seed in range(6)]
MANY = [*PICTURES, *(data_url(picture(224, 224, seed)) for seed in range(6, 16))]  # all at one server: 1 in 2^15
Key = Callable[[list[dict[str, Any]]], str]


@pytest.fixture(scope="module")
def servers(shm_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[RunningServer]]:
    """The last test kills one of them."""
    with ExitStack() as started, pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORWARDED_ALLOW_IPS", "127.0.0.1,127.0.0.9")
        found = []
        for n in range(2):
            root = shm_root.with_name(f"{shm_root.name}-replica-{n}")
            found.append(started.enter_context(running(None, root, tmp_path_factory.mktemp("logs"), *FLAGS)))
        yield found
    for server in found:
        sweep(server.root)
        assert not server.root.exists()


@pytest.fixture(scope="module")
def front(servers: list[RunningServer], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    with in_front(CONFIG, [server.url for server in servers], tmp_path_factory.mktemp("nginx")) as front:
        yield front


@pytest.fixture(scope="module")
def content_key() -> Key:
    """The function that the page shows."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [code] = [block for block in blocks if "def content_key" in block]
    names: dict[str, Any] = {}
    exec(code.partition("\nclient")[0], names)
    found: Key = names["content_key"]
    return found


def chat(url: str | None, text: str, **fields: Any) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    if url is not None:
        parts.insert(0, {"type": "image_url", "image_url": {"url": url}})
    return {"messages": [{"role": "user", "content": parts}], "temperature": 0, "max_tokens": 4, **fields}


def asked(client: httpx.Client, key: Key | None, body: dict[str, Any]) -> dict[str, Any]:
    headers = {} if key is None else {"X-Content-Key": key(body["messages"])}
    answer = client.post("/v1/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def cached(answer: dict[str, Any]) -> int:
    n: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return n


def n_chats(server: RunningServer) -> float:
    return server.metric('http_requests_total{method="POST",route="/v1/chat/completions",status="200"}')


@needs_nginx
def test_questions_about_a_picture_go_where_it_is_cached(
    servers: list[RunningServer], front: Front, content_key: Key
) -> None:
    """Each of many twice, in turns; both servers have work. Without the header it is chance."""
    before = [n_chats(server) for server in servers]
    with front.client() as client:
        first = [cached(asked(client, content_key, chat(url, "What is it?"))) for url in MANY]
        second = [cached(asked(client, content_key, chat(url, "Which colour?"))) for url in reversed(MANY)]
    assert max(first) == 0 and min(second) > 16
    grown = [n_chats(server) - n for server, n in zip(servers, before, strict=True)]
    assert sum(grown) == 2 * len(MANY) and all(n % 2 == 0 for n in grown) and min(grown) > 0


def test_a_conversation_keeps_its_key(content_key: Key) -> None:
    """And another question about the picture has it; another picture, another text or another system text has not."""
    system, rest = {"role": "system", "content": "Be short."}, [
        {"role": "assistant", "content": "A circle."},
        {"role": "user", "content": "Sure?"},
    ]  # fmt: skip
    seen = chat(PICTURES[0], "What is it?")["messages"]
    assert content_key(chat(PICTURES[0], "Which colour?")["messages"]) == content_key([system, *seen])
    said = [{"role": "user", "content": "Hi"}]
    begun = [seen, said, [system, *said], chat(PICTURES[1], "What is it?")["messages"], chat(None, "Ho")["messages"]]
    for messages in begun:
        assert content_key([*messages, *rest]) == content_key(messages)
    assert len({content_key(messages) for messages in begun}) == len(begun)


@needs_nginx
def test_a_stream_arrives_as_it_comes(servers: list[RunningServer], front: Front) -> None:
    """While its server goes on with it."""
    body = chat(None, "Hi", max_tokens=30000, stream=True, ignore_eos=True)

    def running_now() -> float:
        return sum(server.metric("num_requests_running") for server in servers)

    with front.client() as client, client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        assert len(list(islice(lines, 12))) == 12 and running_now() == 1, "all of it came at the end"
    until("it is left", lambda: running_now() == 0)


@needs_nginx
def test_what_a_server_is_told_of_a_client(servers: list[RunningServer], front: Front, content_key: Key) -> None:
    """One id on the way, and the address of the connection: who has nothing in a server has its first turn there."""
    with front.client("127.0.0.2") as one, front.client("127.0.0.3") as other:
        ids = {"mine.1": "mine.1", "no id!": None}
        for given, kept in ids.items():
            answer = one.get("/v1/models", headers={"X-Request-Id": given})
            [said] = answer.headers.get_list("x-request-id")
            assert said == kept if kept else re.fullmatch(r"[0-9a-f]{32}", said)
        assert one.post("/v1/chat/completions", content=b" " * (65 << 20)).status_code == 413
        assert {one.get(path).status_code for path in ("/metrics", "/status/errors")} == {403}
        body = chat(PICTURES[0], "Hi")
        key = {"X-Content-Key": content_key(body["messages"])}
        endless = {**body, "stream": True, "max_tokens": 2000, "ignore_eos": True}

        def counted(n: float) -> bool:
            return firsts(servers) == n

        before = firsts(servers)
        with one.stream("POST", "/v1/chat/completions", json=endless, headers=key):
            until("it runs", partial(counted, before + 1))
            # What the second client writes itself counts for nothing.
            for n, client, forged in ((1, one, {}), (2, other, {}), (3, other, {"X-Forwarded-For": "127.0.0.2"})):
                assert client.post("/v1/chat/completions", json=body, headers={**key, **forged}).status_code == 200
                until("it is counted", partial(counted, before + n))
            # Of the addresses that the server is told of, it heeds what the variable names.
            [server] = [one for one in servers if one.metric("num_requests_running") == 1]
            for n, address in ((3, "127.0.0.9"), (4, "127.0.0.8")):
                with httpx.Client(transport=httpx.HTTPTransport(local_address=address), timeout=120) as direct:
                    told = {"X-Forwarded-For": "127.0.0.2"}
                    assert direct.post(f"{server.url}/v1/chat/completions", json=body, headers=told).status_code == 200
                until("it is counted", partial(counted, before + n))


def firsts(servers: list[RunningServer]) -> float:
    """Requests of clients who had nothing else in their server."""
    return sum(server.metric('client_share_wait_seconds_count{share="first"}') for server in servers)


@needs_nginx
def test_a_dead_server_costs_nobody_an_answer(servers: list[RunningServer], front: Front, content_key: Key) -> None:
    """What it has not begun is asked elsewhere, and so is everything that comes later, in as many pieces as before."""
    long = chat(PICTURES[0], "Hi", max_tokens=400, ignore_eos=True)
    with front.client() as client, ThreadPoolExecutor(1) as pool:
        expected = {url: asked(client, content_key, chat(url, "Hi"))["choices"] for url in PICTURES}
        waiting = pool.submit(asked, client, content_key, long)
        [victim] = until(
            "one of them runs it", lambda: [one for one in servers if one.metric("num_requests_running") == 1]
        )
        children = children_of(victim.pid)
        os.kill(victim.pid, signal.SIGKILL)
        assert waiting.result(120)["usage"]["completion_tokens"] == 400
        for url in PICTURES:
            assert asked(client, content_key, chat(url, "Hi"))["choices"] == expected[url]
        [other] = [one for one in servers if one is not victim]
        again = [cached(asked(client, content_key, chat(url, "And?"))) for url in PICTURES]
        assert min(again) > 16, "the other one has them all by now"
        assert n_chats(other) > 12
    victim.process.wait(10)
    until("its children have gone", lambda: all(map(is_gone, children)))
