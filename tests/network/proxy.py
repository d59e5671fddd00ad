"""A proxy of HTTP that resolves names by itself, and keeps what it was asked for."""

import contextlib
import socket
import threading

from tests.network.names import PUBLIC


class Proxy:
    """Listens at every address; all that it is asked for is at one."""

    def __init__(self, port: int) -> None:
        self.asked: list[str] = []  # first lines
        self._listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += peer.recv(65536)
        first, _, rest = head.partition(b"\r\n")
        self.asked.append(first.decode("ascii"))
        method, where, _ = first.split(b" ")
        if b"refused" in where:
            peer.sendall(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
            peer.close()
            return
        if method == b"CONNECT":
            origin = socket.create_connection((PUBLIC, 443))
            peer.sendall(b"HTTP/1.1 200 Go\r\n\r\n")
        else:
            origin = socket.create_connection((PUBLIC, 80))
            path = b"/" + where.split(b"/", 3)[3]
            origin.sendall(b"%b %b HTTP/1.1\r\n%b" % (method, path, rest))
        threading.Thread(target=_relay, args=(peer, origin), daemon=True).start()
        _relay(origin, peer)


def _relay(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
