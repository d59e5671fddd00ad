"""A real nginx in front of a server, with the configuration that docs/behind-a-proxy.md shows."""

import contextlib
import json
import os
import random
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator

import httpx
import pytest

from tests.certificates import write_certificate
from tests.e2e.conftest import NAME
from tests.e2e.running import REPO, RunningServer, data_url, picture, until

CONFIG = REPO / "deploy" / "nginx.conf"
PAGE = REPO / "docs" / "behind-a-proxy.md"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
needs_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")

# What a Debian's nginx.conf has around the file in conf.d, with every path in a directory of the test's own.
AROUND = """
{user}
daemon off;
pid {at}/nginx.pid;
error_log {at}/error.log;
events {{}}
http {{
    access_log {at}/access.log;
    client_body_temp_path {at}/body;
    proxy_temp_path {at}/proxy;
    fastcgi_temp_path {at}/fastcgi;
    uwsgi_temp_path {at}/uwsgi;
    scgi_temp_path {at}/scgi;
    gzip on;
    gzip_types *;
    include {at}/pixelferry.conf;
}}
"""


def free_port() -> int:
    """None of those that the kernel gives to whoever asks for any, so that nobody takes it before nginx does."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


@pytest.fixture(scope="module")
def proxy(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of nginx, which stands in front of `server`."""
    at = tmp_path_factory.mktemp("nginx")
    cert, key = write_certificate(at)
    port = free_port()
    text = CONFIG.read_text(encoding="utf-8")
    for ours, theirs in (
        ("server 127.0.0.1:8000;", f"server {server.url.removeprefix('http://')};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/nginx/tls/llm.crt", str(cert)),
        ("/etc/nginx/tls/llm.key", str(key)),
    ):
        assert text.count(ours) == 1
        text = text.replace(ours, theirs)
    (at / "pixelferry.conf").write_text(text)
    (at / "nginx.conf").write_text(AROUND.format(at=at, user="user root;" if os.geteuid() == 0 else ""))
    process = subprocess.Popen([str(NGINX), "-p", at, "-c", at / "nginx.conf", "-e", at / "error.log"])
    context = ssl.create_default_context(cafile=cert)
    try:
        url, headers = f"https://127.0.0.1:{port}", {"Host": NAME}
        with httpx.Client(base_url=url, headers=headers, verify=context, timeout=60) as client:
            until("nginx listens", lambda: answers(port) or process.poll() is not None)
            assert process.poll() is None, (at / "error.log").read_text()
            yield client
    finally:
        process.terminate()
        process.wait(60)


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


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
def test_a_stream_arrives_piece_by_piece(proxy: httpx.Client) -> None:
    """Also for a client that takes gzip, and with nginx compressing what it may."""
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400, "stream": True, "ignore_eos": True}
    headers = {"Accept-Encoding": "gzip"}
    came: list[float] = []
    with proxy.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if line.startswith("data: {") and json.loads(line[6:])["choices"]:
                came.append(time.monotonic())
    assert len(came) > 50 and came[-1] - came[0] > 0.1
    assert came[len(came) // 2] - came[0] > 0.1 * (came[-1] - came[0]), "all of it came at the end"


@needs_nginx
def test_a_client_that_leaves_ends_its_request(proxy: httpx.Client, server: RunningServer) -> None:
    before = server.metric('request_success_total{finished_reason="abort"}')
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20000, "stream": True, "ignore_eos": True}
    with proxy.stream("POST", "/v1/chat/completions", json=body) as answer:
        next(answer.iter_lines())
    until("it ended", lambda: server.metric('request_success_total{finished_reason="abort"}') == before + 1)
