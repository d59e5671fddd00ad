"""A server with keys, TLS and a root path, asked over its socket: no route but the probes' answers without a key."""

import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import pytest

from server.http.app import create_app
from server.http.errors import ANTHROPIC
from server.http.middleware.keys import OPEN_PATHS
from server.http.pages import PATHS
from tests.certificates import write_certificate
from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, children_of, until
from tests.e2e.test_container import healthy
from tests.server.http.exchanges import bodies

pytestmark = pytest.mark.process

KEYS = ("sk-first-geheim", "sk-second-geheim", "sk-variable-geheim")


def table() -> list[tuple[str, str]]:
    """Method and path of every route that the app has, whoever added it."""
    routes: list[Any] = list(create_app(MagicMock(), bodies()).routes)
    return [
        (method, re.sub(r"{[^}]*}", "tiny", route.path)) for route in routes for method in sorted(route.methods or ())
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with keys, cert.pem, key.pem and a profile that names them."""
    path = tmp_path_factory.mktemp("secure")
    (path / "keys").write_text("\n".join(KEYS[:2]))
    cert, key = write_certificate(path)
    (path / "mine.toml").write_text(f'host = "127.0.0.3"\nssl_certfile = "{cert}"\nssl_keyfile = "{key}"\n')
    return path


@pytest.fixture(scope="module")
def secure(start: Start, files: Path) -> Iterator[RunningServer]:
    """A server that asks for a key and speaks TLS only, as flags, a profile and the environment tell it."""
    flags = ["--workers", "1", "--root-path", "/llm", "--api-key-file", str(files / "keys")]
    url = files / "url"
    assert not healthy(url)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PIXELFERRY_API_KEY", KEYS[2])
            patch.setenv("PIXELFERRY_URL_FILE", str(url))
            server = stack.enter_context(start(*flags, "--profile", str(files / "mine.toml")))
        yield server
        said = url.read_text()
    assert not url.exists()
    url.write_text(said)
    assert not healthy(url)


@pytest.fixture(scope="module")
def client(secure: RunningServer, files: Path) -> Iterator[httpx.Client]:
    """A client that trusts the certificate, and sends no key."""
    context = ssl.create_default_context(cafile=files / "cert.pem")
    with httpx.Client(base_url=secure.url, verify=context, timeout=60) as client:
        yield client


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_the_ready_line_and_the_file_say_https(secure: RunningServer, files: Path) -> None:
    assert secure.url.startswith("https://127.0.0.3:")
    assert (files / "url").read_text() == f"{secure.url}\n"
    assert healthy(files / "url"), "the health check of the image follows it"


@pytest.mark.parametrize("prefix", ["", "/llm"])
def test_every_route_asks_for_a_key(client: httpx.Client, prefix: str) -> None:
    routes = table()
    assert {"/chat", "/v1/chat/completions", "/tokenize", "/metrics", "/v1/models/tiny"} <= {path for _, path in routes}
    for method, path in [*routes, ("GET", "/none"), ("DELETE", "/chat")]:
        for headers in ({}, bearer("sk-wrong"), {"Authorization": f"Basic {KEYS[0]}"}):
            answer = client.request(method, prefix + path, headers=headers)
            if path in OPEN_PATHS | PATHS:
                assert answer.status_code == 200, (method, path)
                continue
            assert answer.status_code == 401, (method, path)
            assert answer.headers["www-authenticate"] == "Bearer" and answer.headers["x-request-id"]
            if method != "HEAD":
                error = answer.json()["error"]
                kind = "authentication_error" if path.startswith(ANTHROPIC) else "invalid_request_error"
                assert error["code"] == "invalid_api_key" and error["type"] == kind
        assert client.request(method, prefix + path, headers=bearer(KEYS[0])).status_code != 401, (method, path)


def test_a_chat_with_any_of_the_keys(client: httpx.Client) -> None:
    for key in KEYS:
        for prefix in ("", "/llm"):
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
            assert client.post(f"{prefix}/v1/chat/completions", json=body, headers=bearer(key)).status_code == 200


def test_a_browser_may_ask_first(client: httpx.Client) -> None:
    asks = {"Origin": "http://here", "Access-Control-Request-Method": "POST"}
    assert client.options("/v1/chat/completions", headers=asks).status_code != 401


def test_the_answer_comes_before_the_body(secure: RunningServer, files: Path) -> None:
    """A client that waits for "100 Continue" is told 401 and sends nothing."""
    host, port = secure.url.removeprefix("https://").split(":")
    context = ssl.create_default_context(cafile=files / "cert.pem")
    with context.wrap_socket(socket.create_connection((host, int(port)), 60), server_hostname="localhost") as sock:
        sock.sendall(
            b"POST /chat HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 50000000\r\n"
            b"Expect: 100-continue\r\n\r\n"
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_plain_http_gets_nothing(secure: RunningServer, client: httpx.Client) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.get(secure.url.replace("https", "http") + "/health/live", timeout=5)
    assert client.get("/health/live").status_code == 200


def test_a_file_that_changes_is_read_again(client: httpx.Client, files: Path) -> None:
    before = (files / "keys").read_text()
    (files / "fresh").write_text("sk-third-geheim\n")
    (files / "fresh").replace(files / "keys")

    def status(key: str) -> int:
        return client.get("/v1/models", headers=bearer(key)).status_code

    until("the new key counts", lambda: status("sk-third-geheim") == 200, every=0.1)
    assert status(KEYS[0]) == 401 and status(KEYS[2]) == 200
    (files / "keys").write_text(before)
    until("the old keys count again", lambda: status(KEYS[0]) == 200, every=0.1)


def test_a_hangup_reads_keys_and_certificate_again(secure: RunningServer, files: Path, tmp_path: Path) -> None:
    """It ended the server at once, and every request that it had."""
    shown = partial(ssl.get_server_certificate, ("127.0.0.3", int(secure.url.rpartition(":")[2])))
    before, others = shown(), write_certificate(tmp_path)
    kept = [(files / path.name, (files / path.name).read_bytes()) for path in others]
    try:
        for path, _ in kept:
            path.write_bytes((tmp_path / path.name).read_bytes())
        assert shown() == before
        os.kill(secure.pid, signal.SIGHUP)
        until("the new certificate is shown", lambda: shown() != before)
        assert shown() == (tmp_path / "cert.pem").read_text()
        kept[1][0].write_bytes(kept[1][1])  # a key that is not that certificate's
        os.kill(secure.pid, signal.SIGHUP)
        until("it says why not", lambda: "the last certificate goes on to count" in secure.err)
        assert shown() == (tmp_path / "cert.pem").read_text()
    finally:
        for path, content in kept:
            path.write_bytes(content)
        os.kill(secure.pid, signal.SIGHUP)
    until("the first one is back", lambda: shown() == before)


def test_a_key_is_seen_nowhere(secure: RunningServer, client: httpx.Client) -> None:
    client.post("/chat", content=b"{", headers=bearer(KEYS[0]))
    client.get("/v1/models", headers=bearer("geheim-wrong"))
    later = client.get("/v1/models", headers={**bearer(KEYS[0]), "x-request-id": "later-than-those"})
    until("a later line is there", lambda: "later-than-those" in secure.err)
    assert later.status_code == 200 and "geheim" not in secure.out + secure.err
    for pid in (secure.pid, *children_of(secure.pid)):
        assert b"geheim" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for pid in children_of(secure.pid):
        assert b"geheim" not in Path(f"/proc/{pid}/environ").read_bytes()
