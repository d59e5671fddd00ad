"""Rows 7 and 9 to 14, and schemas of choices among choices: one server with keys, whose model runs as two ranks."""

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from urllib.parse import urlsplit

import httpx
import pytest

from server.http.app import create_app
from server.http.middleware.keys import OPEN_PATHS
from server.http.pages import PATHS
from server.usage import usage_of
from tests.e2e.conftest import Start
from tests.e2e.running import RunningServer, children_of, until
from tests.hostile.clients import connected
from tests.hostile.measure import BLOCK_SECONDS
from tests.hostile.posting import until_over
from tests.server.http.exchanges import bodies

pytestmark = [pytest.mark.faults, pytest.mark.process]

PER_MINUTE = 30  # requests that a key may have
KEYS = {name: f"sk-{name}-0123456789abcdef" for name in ("watcher", "limited", "fetcher", "framer", "former", "second")}
LINES = 10  # a minute: docs/operations.md
ANONYMOUS = 50  # requests of each kind: as many as there are last errors


@pytest.fixture(scope="module")
def keyed(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file: Path = tmp_path_factory.mktemp("keyed") / "keys"
    file.write_text("\n".join(KEYS.values()))
    flags = ["--api-key-file", str(file), "--key-requests-per-minute", str(PER_MINUTE), "--allowed-media-domain", "*"]
    with start("--workers", "1", "--tensor-parallel", "2", *flags) as server:
        server.http.headers["authorization"] = f"Bearer {KEYS['watcher']}"
        yield server
        assert server.metric('child_restarts_total{role="engine"}') == 0


def of(server: RunningServer, key: str) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {KEYS[key]}"}, timeout=120)


# ---- row 7


def tree(pid: int) -> list[int]:
    return [pid, *(one for child in children_of(pid) for one in tree(child))]


def sockets_of(pid: int) -> set[str]:
    """Their inodes."""
    found = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            link = os.readlink(f"/proc/{pid}/fd/{fd}")
            found |= {link[8:-1]} if link.startswith("socket:[") else set()
    return found


def listeners(pid: int) -> list[str]:
    """What others may connect to: TCP by its port, and sockets of Unix by their names, as proc(5) has them."""
    own, found = {inode for one in tree(pid) for inode in sockets_of(one)}, []
    for table in ("tcp", "tcp6"):
        rows = [line.split() for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]]
        found += [str(int(row[1].rpartition(":")[2], 16)) for row in rows if row[3] == "0A" and row[9] in own]
    rows = [line.split() for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]]
    return found + [" ".join(row[7:]) for row in rows if int(row[3], 16) & 0x10000 and row[6] in own]


def test_row_7_nothing_but_the_server_takes_connections(keyed: RunningServer) -> None:
    """A rank took whatever connected, and lost a descriptor with each: at its limit the engine ended."""
    with of(keyed, "second") as http:
        body = {"inputs": [{"text": "Hi"}], "structured_outputs": {"regex": "[ab]{3}"}, "parameters": {"max_tokens": 9}}
        assert http.post("/chat", json=body).status_code == 200
    assert len(keyed.children("engine")) == 2, "both ranks are up"
    assert listeners(keyed.pid) == [str(urlsplit(keyed.url).port)]


# ---- rows 9 and 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """What requests without a key left."""

    hidden: str  # the id of an error that was there before them
    errors: dict[str, str]  # the last ones afterwards: route and code by id
    n: int
    lines: int


@pytest.fixture(scope="module")
def flood(keyed: RunningServer) -> Flood:
    """Of every kind that anybody can send, a page and a preflight among them."""
    kinds: list[tuple[str, str, dict[str, str]]] = [
        ("POST", "/chat", {}), ("GET", "/none", {}), ("OPTIONS", "/none", {}), ("DELETE", "/", {}), ("GET", "/", {}),
        ("POST", "/health/live", {}), ("GET", "/metrics", {}), ("GET", "/version", {"host": "evil.example"}),
        ("POST", "/chat", {"content-type": ";" * 300}),
    ]  # fmt: skip
    before = keyed.err.count("\n")
    hidden = keyed.http.post("/chat", json={"inputs": 1}).headers["x-request-id"]
    with httpx.Client(base_url=keyed.url, timeout=60) as http:
        for method, path, headers in kinds * ANONYMOUS:
            http.request(method, path, headers=headers)
    for _ in range(ANONYMOUS):
        assert framed(keyed, b"GET / HTTP/9\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    found = keyed.http.get("/status/errors").json()["errors"]
    keyed.http.get("/v1/models", headers={"x-request-id": "after-all-of-those"})
    until("a later line is there", lambda: "after-all-of-those" in keyed.err)
    errors = {error["id"]: f"{error['route']} {error['code']}" for error in found}
    n, lines = (len(kinds) + 1) * ANONYMOUS, keyed.err.count("\n") - before
    return Flood(hidden=hidden, errors=errors, n=n, lines=lines)


def test_row_9_requests_without_a_key_hide_no_error_of_others(flood: Flood) -> None:
    assert flood.hidden in flood.errors, Counter(flood.errors.values())


def test_row_10_requests_without_a_key_leave_few_lines(flood: Flood, keyed: RunningServer) -> None:
    assert flood.n >= 500 and flood.lines <= 6 * LINES, "of requests and of malformed ones so many a minute"
    counted = keyed.metric('mm_rejected_total{reason="invalid_api_key"}')
    assert counted >= 2 * ANONYMOUS, "those of /metrics leave neither a line nor a count"


# ---- row 11


def test_row_11_every_route_that_reads_a_body_counts(keyed: RunningServer) -> None:
    """200 of /detokenize were answered behind an empty bucket."""
    with of(keyed, "limited") as http:
        spelled = [http.post("/detokenize", json={"tokens": [5] * 4000}) for _ in range(200)]
        seen = Counter(answer.status_code for answer in spelled)
        assert set(seen) == {200, 429} and PER_MINUTE <= seen[200] < 100, seen
        assert spelled[-1].json()["error"]["code"] == "rate_limit_exceeded"
        routes: list[Any] = list(create_app(MagicMock(), bodies()).routes)
        paths = {one.path for one in routes if "POST" in (one.methods or ()) and "{" not in one.path}
        free = dict[str, list[int]]()
        for path in paths - OPEN_PATHS - PATHS:
            tried = [http.post(path, json={}).status_code for _ in range(3)]  # a token may have come back
            free |= {} if 429 in tried else {path: tried}
        assert len(paths) > 5 and not free


# ---- row 12


def test_row_12_no_private_name_is_told_from_one_that_is_not_there(keyed: RunningServer) -> None:
    port = urlsplit(keyed.url).port
    told = {}
    with of(keyed, "fetcher") as http:
        for name in ("nowhere.invalid", "localhost", "LOCALHOST."):
            answer = http.post("/tokenize", json={"inputs": [{"image": f"http://{name}:{port}/"}, {"text": "x"}]})
            told[name] = (answer.status_code, {**answer.json()["error"], "request_id": None})
    assert all(one == told["nowhere.invalid"] for one in told.values()), told
    assert told["localhost"][0] == 400 and told["localhost"][1]["code"] == "media_fetch_failed"


# ---- row 13

SMUGGLED = b"GET /version HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer %s\r\n\r\n" % KEYS["framer"].encode()
BODY = b'{"tokens":[1]}'
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
TE, CL = b"transfer-encoding: chunked\r\n", b"content-length: %d\r\n" % len(BODY)


def spelled(fields: bytes, body: bytes) -> bytes:
    head = SMUGGLED[:-2].replace(b"GET /version", b"POST /detokenize")
    return head + b"content-type: application/json\r\n" + fields + b"\r\n" + body


# What RFC 9112 lets a server refuse, and what another reader may take for the end of a request, or for none.
FRAMINGS = {
    "both lengths": spelled(TE + CL, CHUNKED),
    "both lengths, the other first": spelled(b"content-length: 4\r\n" + TE, CHUNKED),
    "two lengths": spelled(CL + b"content-length: 3\r\n", BODY),
    "a length with a sign": spelled(CL.replace(b": ", b": +"), BODY),
    "identity": spelled(b"transfer-encoding: identity\r\n", b""),
    "gzip": spelled(b"transfer-encoding: gzip, chunked\r\n", CHUNKED),
    "another one": spelled(b"transfer-encoding: xchunked\r\n", CHUNKED),
    "chunked twice": spelled(TE + TE, CHUNKED),
    "a folded encoding": spelled(b"transfer-encoding:\r\n chunked\r\n", CHUNKED),
    "a folded line": spelled(b"a: b\r\n\tc\r\n" + TE, CHUNKED),
    "bare LF": SMUGGLED.replace(b"\r\n", b"\n"),
    "one bare LF": spelled(TE.replace(b"\r\n", b"\n"), CHUNKED),
    "a bare LF at the end": SMUGGLED[:-2] + b"\n",
    "a bare CR": spelled(b"a: b\rc: d\r\n" + TE, CHUNKED),
    "a blank behind a size": spelled(TE, CHUNKED.replace(b"\r\n", b" \r\n", 1)),
    "a tab behind the last size": spelled(TE, CHUNKED.replace(b"0\r\n", b"0\t\r\n")),
    "a bare LF behind a size": spelled(TE, CHUNKED.replace(b"\r\n", b"\n", 1)),
    "a bare LF behind the trailer": spelled(TE, CHUNKED[:-2] + b"a: b\n\r\n"),
    "a folded trailer": spelled(TE, CHUNKED[:-2] + b"a: b\r\n c\r\n\r\n"),
    "a hexadecimal size": spelled(TE, b"0x" + CHUNKED),
    "a size of 30 digits": spelled(TE, b"0" * 30 + CHUNKED),
    "more than a chunk": spelled(TE, CHUNKED.replace(b"}\r\n", b"}XX")),
}


def framed(server: RunningServer, data: bytes) -> bytes:
    """All that is answered until the connection closes, or until what stands behind was answered, too."""
    heard = b""
    with contextlib.closing(connected(server.url)) as sock, contextlib.suppress(ConnectionResetError):
        sock.sendall(data)
        while b'"version"' not in heard and (more := sock.recv(1 << 16)):
            heard += more
    return heard


def test_row_13_what_two_readers_may_read_apart_is_refused(keyed: RunningServer) -> None:
    """And nothing that stands behind it is a request."""
    heard = framed(keyed, spelled(TE, CHUNKED) + spelled(CL, BODY) + SMUGGLED)
    assert [heard.count(b"HTTP/1.1 %d " % status) for status in (200, 400)] == [3, 0], "what is right is read"
    old = spelled(b"connection: keep-alive\r\n" + TE, CHUNKED).replace(b"HTTP/1.1", b"HTTP/1.0")
    assert framed(keyed, old + SMUGGLED).count(b"HTTP/1.1 ") == 1, "HTTP/1.0 has no chunks: the connection ends"
    wrong = {}
    for name, data in FRAMINGS.items():
        heard = framed(keyed, data + SMUGGLED)
        if heard[:13] != b"HTTP/1.1 400 " or heard.count(b"HTTP/1.1 ") != 1:
            wrong[name] = heard[:13], heard.count(b"HTTP/1.1 ")
    assert not wrong


# ---- row 14


def test_row_14_a_page_by_another_scheme_is_another_origin(keyed: RunningServer) -> None:
    host = urlsplit(keyed.url).netloc
    form = b'--b\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\n\r\nx\r\n--b--\r\n'
    seen = {}
    with of(keyed, "framer") as http:
        for origin in ("http", "https", "evil"):
            headers = {"content-type": "multipart/form-data; boundary=b", "origin": f"{origin}://{host}"}
            answer = http.post("/v1/audio/transcriptions", content=form, headers=headers)
            seen[origin] = answer.json()["error"]["code"]
    assert seen.pop("http") == "unsupported_modality" and set(seen.values()) == {"origin_not_allowed"}


# ---- schemas


def lattice(n: int, *, within: bool = False, deep: bool = False, listed: bool = False) -> dict[str, Any]:
    """n definitions, each a choice among all n, behind an integer. within: of an allOf; deep: by second definitions."""
    choices: dict[str, Any] = {"anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(n)]}
    one = {"allOf": [choices]} if within else choices
    definitions: dict[str, Any] = {f"d{i}": {"$ref": f"#/$defs/e{i}"} if deep else one for i in range(n)}
    definitions |= {f"e{i}": one for i in range(n if deep else 0)}
    x = {"$ref": "#/$defs/d0"}
    properties = {"n": {"type": "integer"}, "x": {"type": "array", "items": x} if listed else x}
    return {"type": "object", "properties": properties, "required": ["n", "x"], "$defs": definitions}


LATTICES = {
    "25 KB": lattice(33), "94 KB": lattice(63), "208 KB": lattice(94), "within allOf": lattice(63, within=True),
    "by two definitions": lattice(63, deep=True), "47 KB of items": lattice(45, listed=True),
}  # fmt: skip


def test_choices_among_choices_hold_up_no_step(keyed: RunningServer) -> None:
    """16 answers to each; between two tokens of a second client's the engine spends no time to speak of."""
    ranks, over, gaps, seen = keyed.children("engine"), threading.Event(), list[float](), dict[str, tuple[str, float]]()

    def watch() -> None:
        body = {"inputs": [{"text": "Hi"}], "parameters": {"max_tokens": 30000, "ignore_eos": True}, "stream": True}
        with of(keyed, "second") as http, http.stream("POST", "/chat", json=body) as answer:
            spent = 0.0
            for _ in answer.iter_raw():
                last, spent = spent, sum(usage_of(rank).cpu_seconds for rank in ranks)
                gaps.append(spent - last)
                if over.is_set():
                    return

    def go_on() -> None:
        n = len(gaps)
        until("the second client has its next token", lambda: len(gaps) > n)

    with of(keyed, "former") as http, until_over([watch], over):
        for name, schema in LATTICES.items():
            go_on()
            begun = len(gaps)
            form = {"prompt": ["Hi", "Ho"], "n": 8, "max_tokens": 40, "structured_outputs": {"json": schema}}
            answer = http.post("/v1/completions", json=form)
            go_on()
            code = answer.json().get("error", {}).get("code")
            seen[name] = f"{answer.status_code} {code}", round(max(gaps[begun:]), 2)
    assert all(seconds <= BLOCK_SECONDS for _, seconds in seen.values()), seen
    assert {told for told, _ in seen.values()} <= {"200 None", "400 structured_output"}, seen
