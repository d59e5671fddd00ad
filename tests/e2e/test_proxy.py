"""A real nginx in front of a server, with the configuration that docs/behind-a-proxy.md shows."""

import json
import re
from collections.abc import Iterator
from itertools import islice

import httpx
import pytest

from tests.e2e.nginx import in_front, needs_nginx
from tests.e2e.running import REPO, RunningServer, data_url, picture, until

pytestmark = pytest.mark.process

CONFIG = REPO / "deploy" / "nginx.conf"
PAGE = REPO / "docs" / "behind-a-proxy.md"


@pytest.fixture(scope="module")
def proxy(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of nginx, which stands in front of `server`."""
    with in_front(CONFIG, [server.url], tmp_path_factory.mktemp("nginx")) as front, front.client() as client:
        yield client


def test_the_page_shows_the_file_that_is_tried() -> None:
    blocks = re.findall(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks[0] == CONFIG.read_text(encoding="utf-8")


@needs_nginx
@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_routes_answer_with_and_without_the_sub_path(proxy: httpx.Client, prefix: str) -> None:
    assert proxy.get(f"{prefix}/v1/models").json()["data"][0]["id"] == "tiny"
    assert proxy.get(f"{prefix}/health/ready").status_code == 200
    assert {proxy.get(f"{prefix}/{path}").status_code for path in ("metrics", "status/errors")} == {403}


@needs_nginx
def test_a_picture_larger_than_nginx_would_take_by_itself(proxy: httpx.Client) -> None:
    image = data_url(picture(700, 700, kind="BMP"), "bmp")
    assert len(image) > 1 << 20
    body = {"inputs": [{"image": image}, {"text": "Hi"}], "parameters": {"max_tokens": 1}}
    assert proxy.post("/llm/chat", json=body).json()["usage"]["completion_tokens"] == 1


@needs_nginx
def test_what_is_too_large_for_both_is_a_413(proxy: httpx.Client) -> None:
    assert proxy.post("/chat", content=b"x" * (65 << 20)).status_code == 413


@needs_nginx
def test_a_stream_arrives_piece_by_piece(proxy: httpx.Client, server: RunningServer) -> None:
    """Also for a client that takes gzip, and with nginx compressing what it may: while the server goes on with it."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 30000, "stream": True, "ignore_eos": True}
    with proxy.stream("POST", "/v1/chat/completions", json=body, headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.status_code == 200
        lines = (line for line in answer.iter_lines() if line.startswith("data: {"))
        assert len([json.loads(line[6:]) for line in islice(lines, 12)]) == 12
        assert server.metric("num_requests_running") == 1, "all of it came at the end"
    until("it is left", lambda: server.metric("num_requests_running") == 0)


@needs_nginx
def test_a_client_that_leaves_ends_its_request(proxy: httpx.Client, server: RunningServer) -> None:
    before = server.metric('request_success_total{finished_reason="abort"}')
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20000, "stream": True, "ignore_eos": True}
    with proxy.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    until("it ended", lambda: server.metric('request_success_total{finished_reason="abort"}') == before + 1)
