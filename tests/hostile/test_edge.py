"""Bytes that only look like HTTP, at full scale: what a third reading sent at the edge. Settings are the defaults."""

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.certificates import write_certificate
from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY
from tests.e2e.running import RunningServer
from tests.hostile.clients import connected, crowd, head, say
from tests.hostile.conftest import Held
from tests.hostile.measure import Attack
from tests.hostile.posting import until_over
from tests.hostile.test_connections import BASE

pytestmark = [pytest.mark.long, pytest.mark.process]
MIB = 1 << 20
CHUNKED = (
    b"POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)


def flooding(n: int, data: bytes) -> Callable[[RunningServer, set[int]], contextlib.AbstractContextManager[None]]:
    """`n` connections that send `data` as fast as it is taken, again and again, and read what comes."""

    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        over = threading.Event()

        def flood() -> None:
            while not over.is_set():
                with contextlib.suppress(OSError), contextlib.closing(connected(server.url)) as sock:
                    sock.setsockopt(
                        socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                    )  # what is on its way ends
                    reader = threading.Thread(target=partial(drain, sock))
                    reader.start()
                    say(sock, data)
                    reader.join(timeout=1)
                    sock.shutdown(socket.SHUT_RDWR)  # or the reader would hold it open
                over.wait(0.05)

        with until_over([flood] * n, over):
            yield

    return go


def drain(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while sock.recv(1 << 16):
            pass


@pytest.mark.parametrize(
    ("name", "n", "data"),
    [
        ("row 5 pipelined heads", 16, b"GET / HTTP/1.1\r\n\r\n" * 14564),
        ("row 5 heads of many fields", 16, b"GET / HTTP/1.1\r\n" + b"a:\r\n" * 16000 + b"\r\n"),
        ("row 5 chunks of one byte", 16, CHUNKED + b"1\r\nx\r\n" * 100_000),
        (
            "row 6 upgrades",
            16,
            b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n" * 1000,
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_that_are_dear_to_parse(start: Start, held: Held, name: str, n: int, data: bytes) -> None:
    with start() as server:
        held(server, Attack(name=name, go=flooding(n, data), memory_bytes=BASE + 64 * MIB, late=2.0))


def test_row_9_stalled_bodies_hold_no_connection(start: Start, held: Held) -> None:
    stalled = head("/chat", 100)

    @contextlib.contextmanager
    def go(server: RunningServer, killed: set[int]) -> Iterator[None]:
        def join() -> socket.socket:
            sock = connected(server.url)
            say(sock, stalled)
            return sock

        with crowd(1000, join, reads=True):
            yield

    with start("--max-connections", "900") as server:
        held(server, Attack(name="row 9 stalled bodies", go=go, memory_bytes=BASE + 1000 * (32 << 10)))


def test_row_1_a_bad_port_over_tls_ends_nothing(start: Start, tmp_path: Path) -> None:
    """Without a close_notify; the server is asked again after its clock has ticked for longer than a head may take."""
    cert, key = write_certificate(tmp_path)
    flags = ("--ssl-certfile", str(cert), "--ssl-keyfile", str(key), "--receive-seconds", "2")
    with start(*flags) as server:
        address, context = urlsplit(server.url), ssl.create_default_context(cafile=str(cert))
        socks = []
        for _ in range(6):
            plain = socket.create_connection((address.hostname, address.port))
            socks.append(context.wrap_socket(plain, server_hostname="localhost"))
            socks[-1].sendall(b"GET http://a:99999/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        threading.Event().wait(6)
        body = {"inputs": [{"text": "Hi"}], "parameters": GREEDY}
        answer = httpx.post(f"{server.url}/chat", json=body, verify=context, timeout=60)
        assert answer.status_code == 200, answer.text
        for sock in socks:
            sock.close()
