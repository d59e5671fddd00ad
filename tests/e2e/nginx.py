"""A real nginx with a configuration of deploy/, on ports and with files of a test's own."""

import contextlib
import os
import random
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.certificates import write_certificate
from tests.e2e.conftest import NAME
from tests.e2e.running import until

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


@dataclass(frozen=True)
class Front:
    """An nginx that listens."""

    url: str
    cert: Path

    def client(self, address: str = "127.0.0.1") -> httpx.Client:
        """One that calls from `address`."""
        transport = httpx.HTTPTransport(
            verify=ssl.create_default_context(cafile=self.cert), local_address=address, limits=httpx.Limits()
        )
        return httpx.Client(base_url=self.url, headers={"Host": NAME}, transport=transport, timeout=120)


@contextlib.contextmanager
def in_front(config: Path, servers: Sequence[str], at: Path) -> Iterator[Front]:
    """An nginx with that configuration, and `servers` (URLs) in the place of those on ports 8000 and up."""
    cert, key = write_certificate(at)
    port = free_port()
    text = config.read_text(encoding="utf-8")
    for ours, theirs in (
        *((f"server 127.0.0.1:{8000 + n}", f"server {url.removeprefix('http://')}") for n, url in enumerate(servers)),
        ("listen 443 ssl;", f"listen 127.0.0.1:{port} ssl;"),
        ("/etc/nginx/tls/llm.crt", str(cert)),
        ("/etc/nginx/tls/llm.key", str(key)),
    ):
        assert text.count(ours) == 1
        text = text.replace(ours, theirs)
    (at / "pixelferry.conf").write_text(text)
    (at / "nginx.conf").write_text(AROUND.format(at=at, user="user root;" if os.geteuid() == 0 else ""))
    process = subprocess.Popen([str(NGINX), "-p", at, "-c", at / "nginx.conf", "-e", at / "error.log"])
    try:
        until("nginx listens", lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (at / "error.log").read_text()
        yield Front(f"https://127.0.0.1:{port}", cert)
    finally:
        process.terminate()
        process.wait(60)


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0
