"""A small hub on loopback: as much of the Hugging Face hub's HTTP and of ModelScope's as their clients ask for."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class SmallHub:
    """One repository, `tiny/model`, and what goes wrong with it."""

    files: dict[str, bytes]
    commit: str = COMMIT
    refusal: tuple[int, str] | None = None  # status and X-Error-Code of every answer
    cut: dict[str, int] = field(default_factory=dict)  # bytes of a body after which the connection breaks
    held: dict[str, threading.Event] = field(default_factory=dict)  # half of a body comes before, the rest after it
    cuts_left: int = 1 << 30
    etags: dict[str, str] = field(default_factory=dict)  # instead of true ones
    extra: dict[str, str] = field(default_factory=dict)  # headers of every answer about a file, instead of true ones
    asked: list[str] = field(default_factory=list)  # method, path and range of every request
    url: str = ""

    def got(self, name: str) -> list[str]:
        """The requests for a file's body."""
        return [line for line in self.asked if line.startswith("GET ") and name in line and "repo/files" not in line]


@contextmanager
def running(files: Path | dict[str, bytes], **faults: Any) -> Iterator[SmallHub]:
    """A hub that serves a directory, or these bytes."""
    if isinstance(files, Path):
        files = {path.name: path.read_bytes() for path in sorted(files.iterdir())}
    hub = SmallHub(files, **faults)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: SmallHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, url = self.hub, urlsplit(self.path)
        hub.asked.append(f"{self.command} {unquote(self.path)} {self.headers.get('Range', '')}".strip())
        if hub.refusal:
            return self._answer(hub.refusal[0], b'{"error": "no"}', {"X-Error-Code": hub.refusal[1]})
        path, query = unquote(url.path), parse_qs(url.query)
        if found := re.fullmatch(r"/api/models/tiny/model/revision/([^/]+)", path):
            return self._answer(200, json.dumps(self._info()).encode()) if self._known(found[1]) else None
        if found := re.fullmatch(r"/api/models/tiny/model/tree/([^/]+)", path):
            return self._answer(200, json.dumps(self._tree()).encode()) if self._known(found[1]) else None
        if found := re.fullmatch(r"/tiny/model/resolve/([^/]+)/(.+)", path):
            return self._file(found[2]) if self._known(found[1]) else None
        if path == "/api/v1/models/tiny/model/repo/files":
            return self._answer(
                200, json.dumps({"Code": 200, "Success": True, "Data": {"Files": self._list()}}).encode()
            )
        if path == "/api/v1/models/tiny/model/repo":
            return self._file(query["FilePath"][0])
        return self._answer(404, b'{"Code": 404, "Message": "not found"}', {"X-Error-Code": "RepoNotFound"})

    def _known(self, revision: str) -> bool:
        if revision in ("main", self.hub.commit):
            return True
        self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        return False

    def _info(self) -> dict[str, Any]:
        files = [{"rfilename": name, "size": len(body)} for name, body in self.hub.files.items()]
        return {"_id": "1", "id": "tiny/model", "sha": self.hub.commit, "siblings": files}

    def _tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": name, "size": len(body), "oid": hashlib.sha1(body).hexdigest()}
            for name, body in self.hub.files.items()
        ]

    def _list(self) -> list[dict[str, Any]]:
        return [
            {"Path": name, "Name": name, "Size": len(body), "Type": "blob", "Sha256": hashlib.sha256(body).hexdigest()}
            for name, body in self.hub.files.items()
        ]

    def _file(self, name: str) -> None:
        body = self.hub.files.get(name)
        if body is None:
            missing = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": self.hub.commit, **self.hub.extra}
            return self._answer(404, b"", missing)
        etag = self.hub.etags.get(name, hashlib.sha1(body).hexdigest())
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": self.hub.commit, "Accept-Ranges": "bytes", **self.hub.extra}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            return self._answer(200, body, headers, self.hub.cut.get(name), self.hub.held.get(name))
        start, end = int(wanted[1]), int(wanted[2] or len(body) - 1)
        headers["Content-Range"] = f"bytes {start}-{end}/{len(body)}"
        return self._answer(206, body[start : end + 1], headers, self.hub.cut.get(name))

    def _answer(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, cut: int | None = None,
        held: threading.Event | None = None,
    ) -> None:  # fmt: skip
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if cut is not None and self.hub.cuts_left > 0:
            self.hub.cuts_left -= 1
            self.wfile.write(body[:cut])
            self.close_connection = True
        else:
            half = 0 if held is None else len(body) // 2
            self.wfile.write(body[:half])
            if held is not None:
                held.wait()
            self.wfile.write(body[half:])
