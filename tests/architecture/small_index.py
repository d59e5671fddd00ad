"""A small package index on loopback: simple pages in both forms, and wheels of which parts may be asked for."""

import io
import json
import re
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

JSON = "application/vnd.pypi.simple.v1+json"


def wheel(requires: Sequence[str], padding: int = 0) -> bytes:
    """A wheel with these requirements, and so many bytes before and after its METADATA."""
    lines = ["Metadata-Version: 2.1", *(f"Requires-Dist: {line}" for line in requires), "", "A description."]
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr("before", bytes(padding))
        archive.writestr("x.dist-info/METADATA", "\n".join(lines))
        archive.writestr("after", bytes(padding))
    return held.getvalue()


@dataclass
class SmallIndex:
    """Files by name, the oldest first; a project's page lists those whose name begins with it."""

    files: dict[str, bytes] = field(default_factory=dict)
    requires_python: dict[str, str] = field(default_factory=dict)  # by file
    html: bool = False
    ranges: bool = True
    url: str = ""

    def add(self, name: str, requires: Sequence[str] = (), python: str = "", padding: int = 0) -> None:
        """One more wheel."""
        self.files[name] = wheel(requires, padding)
        self.requires_python[name] = python


class _Handler(BaseHTTPRequestHandler):
    index: SmallIndex
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""

    def do_GET(self) -> None:
        _, kind, name, *_ = unquote(self.path).split("/")
        if kind == "simple":
            self._page(name)
        else:
            self._file(self.index.files[name])

    def _page(self, project: str) -> None:
        names = [name for name in self.index.files if name.split("-")[0].replace("_", "-") == project]
        if not names:
            self._answer(404, b"", {})
        elif self.index.html:
            python = {name: self.index.requires_python[name].replace(">", "&gt;") for name in names}
            links = [
                f'<a href="../../files/{name}#sha256=0" data-requires-python="{python[name]}">x</a>' for name in names
            ]
            self._answer(200, "\n".join(links).encode(), {"Content-Type": "text/html"})
        else:
            files = [
                {
                    "filename": name,
                    "url": f"../../files/{name}",
                    "requires-python": self.index.requires_python[name] or None,
                }
                for name in names
            ]
            self._answer(200, json.dumps({"files": files}).encode(), {"Content-Type": JSON})

    def _file(self, body: bytes) -> None:
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if match is None or not self.index.ranges:
            self._answer(200, body, {})
            return
        first, last = match.groups()
        start = int(first) if first else max(0, len(body) - int(last))
        end = int(last) + 1 if first else len(body)
        self._answer(206, body[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(body)}"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def running() -> Iterator[SmallIndex]:
    """An empty index, until the block ends."""
    index = SmallIndex()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"index": index}))
    index.url = f"http://127.0.0.1:{server.server_address[1]}/simple"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
