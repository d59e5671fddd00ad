"""Shares among keys behind the ingress, which gives a replica's server the key and the address that it got."""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from configs.settings import load_config
from deploy.ray.forwarding import ForwardedRequest, Head, Piece
from deploy.ray.ingress import Ingress
from deploy.ray.server_process import start
from tests.deploy.ray.asking import chat
from tests.deploy.ray.cluster import CPU, MOST_REQUESTS
from tests.e2e.running import until
from tests.hostile.clients import connected, posted, say

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
KEYS = [f"key-{n}" for n in range(9)]
PATH = "/v1/completions"
GREEDS = {"one key": (KEYS[:1], MOST_REQUESTS), "eight keys": (KEYS[:8], MOST_REQUESTS // 8)}


class OneReplica:
    """A replica's code in this process: all of the way but Serve's proxy and handle."""

    def __init__(self, replica: Any) -> None:
        self._replica = replica

    async def forward(self, request: ForwardedRequest) -> AsyncGenerator[Piece, None]:
        async with contextlib.aclosing(self._replica.forward(request)) as pieces:
            async for piece in pieces:
                yield piece

    async def ask_all(self, request: ForwardedRequest) -> Sequence[tuple[str, Head, bytes]]:
        return [await self._replica.look(request)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of an ingress before one server that asks for keys."""
    pytest.importorskip("ray", reason="run by `make test-ray`")
    from deploy.ray.replica import Replica

    keys: Path = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text("\n".join(KEYS))
    replica = Replica.__new__(Replica)
    replica._name = f"shares{os.getpid()}"
    replica._server = start([*CPU, "--api-key-file", str(keys)], replica._name)
    ingress = Ingress(OneReplica(replica), load_config([]).http, hosts=None, pages={})
    server = uvicorn.Server(uvicorn.Config(ingress, port=0, lifespan="off", log_level="warning"))

    async def life() -> None:
        await replica._server.ready()
        await server.serve()
        await replica._server.end()

    thread = threading.Thread(target=asyncio.run, args=(life(),))
    thread.start()
    until("it listens", lambda: server.started or not thread.is_alive(), 120, 0.1)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def inside(http: httpx.Client) -> float:
    """Requests that the server holds."""
    states = ("pixelferry:num_requests_running{", "pixelferry:num_requests_waiting{")
    lines = http.get("/metrics").text.splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(states))


@pytest.mark.parametrize("name", GREEDS)
def test_a_key_is_answered_beside_those_that_hold_every_place(url: str, name: str) -> None:
    """All from one address, and nobody reads."""
    keys, n_each = GREEDS[name]
    holds = {"prompt": [[1]] * n_each, "max_tokens": 3900, "ignore_eos": True}
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEYS[8]}"}, timeout=120) as http:
        with contextlib.ExitStack() as stack:
            for key in keys:
                sock = stack.enter_context(contextlib.closing(connected(url)))
                say(sock, posted(PATH, holds, f"Authorization: Bearer {key}"))
            until("every place is taken", lambda: inside(http) >= MOST_REQUESTS, 60, 0.1)
            answers = [http.post("/v1/chat/completions", json=chat(f"hello {n}")) for n in range(3)]
            assert [answer.status_code for answer in answers] == [200] * 3
            page = http.get("/metrics").text.splitlines()
            assert any("client_share_gave_way_total{" in line and not line.endswith(" 0.0") for line in page)
        until("all is let go", lambda: inside(http) == 0, 60, 0.1)


def test_a_key_that_the_server_does_not_know_is_refused(url: str) -> None:
    answer = httpx.post(f"{url}{PATH}", json={"prompt": "x"}, headers={"x-api-key": "key-9"}, timeout=60)
    assert (answer.status_code, json.loads(answer.content)["error"]["code"]) == (401, "invalid_api_key")


def test_blanks_around_a_value_are_no_part_of_it(url: str) -> None:
    """The parser of Serve's proxy keeps them, and the client of a replica's server sends no such value."""
    with contextlib.closing(connected(url)) as sock:
        say(sock, posted(PATH, {"prompt": "x", "max_tokens": 1}, f"Authorization: Bearer {KEYS[0]} ", "X-Mine: a \t"))
        assert sock.recv(99).startswith(b"HTTP/1.1 200 ")
