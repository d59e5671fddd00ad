"""Servers of HTTP at every address: they serve well, badly or for ever, by path, and keep who was connected to."""

import contextlib
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from tests.network.names import PUBLIC, PUBLIC6

SERVED = {ipaddress.ip_address(PUBLIC), ipaddress.ip_address(PUBLIC6)}
HEAD = b"HTTP/1.1 200 OK\r\n"
Behaviour = Callable[[socket.socket, dict[str, list[str]]], None]


class Origins:
    """`connected`: the address and port of each connection that anybody made."""

    def __init__(self, medium: bytes, contexts: dict[str, ssl.SSLContext] | None = None) -> None:
        """medium: what /medium answers; contexts: by name, those of TLS on port 443."""
        self.medium = medium
        self.connected: list[tuple[str, int]] = []
        self.requests: list[bytes] = []  # heads
        self.files: dict[str, bytes] = {}  # what /file?of=NAME answers
        self.gone = threading.Event()  # who asked for /gone has closed the connection
        self._contexts = contexts or {}
        listeners = {
            port: socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=512)
            for port in (80, 443, 8080)
        }
        listeners[81] = socket.create_server((PUBLIC, 81))  # there alone
        for port, listener in listeners.items():
            threading.Thread(target=self._accept, args=(listener, port), daemon=True).start()

    def forbidden(self) -> list[tuple[str, int]]:
        """Connections to any address but those two that are served."""
        return [(where, port) for where, port in self.connected if ipaddress.ip_address(where) not in SERVED]

    def _accept(self, listener: socket.socket, port: int) -> None:
        while True:
            peer, _ = listener.accept()
            address = ipaddress.ip_address(peer.getsockname()[0])
            where = str(getattr(address, "ipv4_mapped", None) or address)
            self.connected.append((where, port))
            threading.Thread(target=self._serve, args=(peer, port), daemon=True).start()

    def _serve(self, peer: socket.socket, port: int) -> None:
        with contextlib.suppress(OSError), peer:
            if port == 443:
                peer = self._secured(peer)
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := peer.recv(65536)):
                    return
                head += more
            self.requests.append(head)
            url = urlsplit(head.split(b" ")[1].decode("ascii"))
            behaviour: Behaviour = getattr(self, "_" + url.path.strip("/").split("/")[0].replace("-", "_"))
            behaviour(peer, parse_qs(url.query))
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def _secured(self, peer: socket.socket) -> socket.socket:
        first = next(iter(self._contexts.values()))

        def choose(connection: ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self._contexts.get(name or "", first)

        first.sni_callback = choose  # type: ignore[assignment]  # it may return None
        return first.wrap_socket(peer, server_side=True)

    # ---- what a path does

    def _medium(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        n = len(self.medium)
        peer.sendall(HEAD + b"Set-Cookie: a=b\r\nContent-Length: %d\r\n\r\n" % n + self.medium)

    def _file(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        body = self.files[asked["of"][0]]
        peer.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _gone(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        if not peer.recv(1):
            self.gone.set()

    def _redirect(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        """?status=302&to=URL"""
        status, to = asked["status"][0].encode(), asked["to"][0].encode("latin-1")
        peer.sendall(b"HTTP/1.1 %b Elsewhere\r\nLocation: %b\r\nContent-Length: 0\r\n\r\n" % (status, to))

    def _nowhere(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n")

    def _status(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        body = b"secret"
        status = asked["of"][0].encode()
        length = b"" if status in (b"204", b"304") else b"Content-Length: %d\r\n" % len(body)
        peer.sendall(b"HTTP/1.1 %b Said\r\n%b\r\n" % (status, length) + (body if length else b""))

    def _trickle(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"Content-Length: 100000\r\n\r\n")
        while True:
            peer.sendall(b"x")
            time.sleep(0.05)

    def _slow_head(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD)
        while True:
            peer.sendall(b"X-A: b\r\n")
            time.sleep(0.05)

    def _interim(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        while True:
            peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            time.sleep(0.01)

    def _silent(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        time.sleep(60)

    def _endless(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"\r\n")
        while True:
            peer.sendall(bytes(65536))
            time.sleep(0.001)

    def _chunks(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        """The medium, a byte in each chunk."""
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in self.medium)
        peer.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")

    def _huge_head(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"X-A: " + b"b" * (1 << 20) + b"\r\nContent-Length: 1\r\n\r\nx")

    def _lying(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\nx")

    def _short(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"Content-Length: 100\r\n\r\nsecret")

    def _negative(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"Content-Length: -1\r\n\r\nsecret")

    def _two_lengths(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"Content-Length: 3\r\nContent-Length: 6\r\n\r\nsecret")

    def _empty(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(HEAD + b"Content-Length: 0\r\n\r\n")

    def _garbage(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.sendall(b"220 secret mail server\r\n")

    def _bomb(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        """?coding=gzip, a header for each"""
        codings = b"".join(b"Content-Encoding: %b\r\n" % coding.encode() for coding in asked["coding"])
        peer.sendall(HEAD + codings + b"Content-Length: 4\r\n\r\n\x1f\x8b\x08\x00")

    def _close(self, peer: socket.socket, asked: dict[str, list[str]]) -> None:
        peer.close()
