"""Clients that withhold what they promised, or leave what they asked for: raw sockets, many at once."""

import contextlib
import json
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

CHUNK = 1 << 20


def head(path: str, nbytes: int, *lines: str) -> bytes:
    """Of a POST with a JSON body of so many bytes; `lines`: further fields."""
    fields = ["Host: 127.0.0.1", "Content-Type: application/json", f"Content-Length: {nbytes}", *lines]
    return "\r\n".join([f"POST {path} HTTP/1.1", *fields, "", ""]).encode()


def posted(path: str, body: dict[str, Any], *lines: str) -> bytes:
    content = json.dumps(body).encode()
    return head(path, len(content), *lines) + content


def all_but_one_byte(nbytes: int) -> bytes:
    """A chat of that size whose last byte never comes."""
    return head("/chat", nbytes) + b'{"inputs": [{"text": "' + b"x" * (nbytes - 23)


def connected(url: str, receive_buffer: int | None = None, source: str = "") -> socket.socket:
    """source: the address that it comes from."""
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(20)
    address = urlsplit(url)
    try:
        if source:
            sock.bind((source, 0))
        sock.connect((address.hostname, address.port))
    except BaseException:
        sock.close()
        raise
    return sock


def say(sock: socket.socket, data: bytes) -> None:
    """As much as the server takes before it closes, or stops reading for longer than the socket waits."""
    with contextlib.suppress(OSError):
        sock.sendall(data)


def is_closed(sock: socket.socket) -> bool:
    """Whether the server has closed it; what came before that is thrown away."""
    sock.setblocking(False)
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@contextlib.contextmanager
def crowd(n: int, join: Callable[[], socket.socket], *, reads: bool) -> Iterator[list[socket.socket]]:
    """`n` connections during the block: whoever is closed by the server comes again, at most some hundred a second.

    reads: look at what comes, and so learn at once of the end; otherwise it is the kernel that tells of a reset.
    """
    socks: list[socket.socket] = []
    over = threading.Event()

    def keep() -> None:
        while not over.wait(0.25):
            for sock in list(socks):
                if is_closed(sock) if reads else is_reset(sock):
                    socks.remove(sock)
                    sock.close()
            for _ in range(min(n - len(socks), 100)):
                with contextlib.suppress(OSError):
                    socks.append(join())
                if over.is_set():
                    break

    with contextlib.suppress(OSError):
        while len(socks) < n:
            socks.append(join())
    keeper = threading.Thread(target=keep, name="crowd")
    keeper.start()
    try:
        yield socks
    finally:
        over.set()
        keeper.join()
        for sock in socks:
            sock.close()


def is_reset(sock: socket.socket) -> bool:
    with selectors.PollSelector() as poll:
        poll.register(sock, selectors.EVENT_WRITE)
        poll.select(0)
    return sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
