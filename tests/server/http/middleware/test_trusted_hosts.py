"""A request has one Host, and on a loopback address that is a name of this machine for itself."""

from typing import Any

from server.http.middleware.keys import OPEN_PATHS
from tests.server.http.exchanges import messages_of, surrounded
from tests.tables import each_of


async def answers(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def status(hosts: list[bytes], allowed: tuple[str, ...] | None = (), **scope: Any) -> tuple[int, bytes]:
    """Of a request with these Host lines."""
    app = surrounded(answers, hosts=allowed)
    start, *rest = messages_of(app, [b""], [(b"host", host) for host in hosts], **scope)
    return start["status"], b"".join(message.get("body", b"") for message in rest)


@each_of(
    "host",
    ["localhost", "LOCALHOST:8000", "localhost.", "127.0.0.1", "127.0.0.1:80", "127.9.9.9", "[::1]", "[::1]:8000"],
)
def test_names_of_this_machine_for_itself_are_taken(host: str) -> None:
    assert status([host.encode()])[0] == 204


@each_of(
    "host",
    [
        "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:8000", "0.0.0.0", "", "::1",
        "[127.0.0.1]", "localhost:8000:1", "localhost:x", "localhost@evil.example", "192.168.0.1", "[::2]", "1",
        "127.0.0.1, localhost", "x" * 500,
    ],
)  # fmt: skip
def test_other_names_are_refused(host: str) -> None:
    found, body = status([host.encode()])
    assert found == 403 and b'"host_not_allowed"' in body and len(body) < 600


@each_of("allowed", [(), None, ("llm.example.com",)])
@each_of("hosts", [[], [b"localhost", b"localhost"], [b"llm.example.com", b"evil.example"]])
def test_a_request_has_one_host(hosts: list[bytes], allowed: tuple[str, ...] | None) -> None:
    found, body = status(hosts, allowed)
    assert found == 400 and b'"invalid_host"' in body


def test_http_1_0_has_none() -> None:
    assert status([], http_version="1.0")[0] == 204
    assert status([b"evil.example"], http_version="1.0")[0] == 403


def test_more_names_may_be_allowed_and_all_where_nobody_asks() -> None:
    for host, found in ((b"LLM.example.com:443", 204), (b"127.0.0.1", 204), (b"example.com", 403)):
        assert status([host], ("llm.example.com",))[0] == found
    assert status([b"evil.example"], None)[0] == 204


@each_of("path", sorted(OPEN_PATHS))
def test_probes_ask_by_any_name(path: str) -> None:
    assert status([b"10.0.0.7:8000"], ("llm.example.com",), path=path)[0] == 204
    assert status([b"10.0.0.7", b"10.0.0.7"], ("llm.example.com",), path=path)[0] == 400
