"""Every answer has a request id, and nothing internal leaves with an error that no route has caught."""

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response

from server.http.app import create_app
from server.http.middleware.body_limits import BodyBudget
from server.http.middleware.envelope import Envelope
from server.metrics import Metrics
from tests.server.doubles import Scene
from tests.server.http.exchanges import ask, exchange
from tests.server.scenario import Play


class Failing:
    """An app that reads its request's body, sends what it is given and then fails."""

    def __init__(self, *messages: dict[str, Any]) -> None:
        self.messages = messages

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        for message in self.messages:
            await send(message)
        raise RuntimeError("secret 0x7f /etc")


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the id that routes are told, and with a header of its own."""
    await Request(scope, receive).body()
    await Response(scope["state"]["request_id"], headers={"x-own": "kept"})(scope, receive, send)


def surrounded(app: Any) -> Envelope:
    return Envelope(app, Metrics("tiny", "1"))


def ids_of(*headers: tuple[bytes, bytes]) -> tuple[str, str]:
    """The id that the answer's header has and the one that the routes are told."""
    start, body = exchange(surrounded(echo), [b"x"], dict(headers))
    (found,) = (value for name, value in start["headers"] if name == b"x-request-id")
    return found.decode(), body["body"].decode()


@pytest.mark.parametrize("mine", [b"7", b"mine-1.a_Z", b"x" * 64])
def test_a_short_and_harmless_request_id_is_echoed_and_never_used_as_ours(mine: bytes) -> None:
    shown, told = ids_of((b"x-request-id", mine))
    assert shown == mine.decode() and re.fullmatch("[0-9a-f]{24}", told)


@pytest.mark.parametrize(
    "strange",
    [b"", b"x" * 65, b"a b", b"a\tb", b"a\n", b"a\r\nset-cookie: b", b"\x1b[31m", b"<b>", b"../a", b"%0a", b"\xe9"],
)
def test_a_request_id_that_could_harm_a_log_is_replaced(strange: bytes) -> None:
    shown, told = ids_of((b"x-request-id", strange))
    assert shown == told and re.fullmatch("[0-9a-f]{24}", shown)


def test_requests_without_an_id_get_one_each() -> None:
    ids = {ids_of()[0] for _ in range(20)}
    assert len(ids) == 20 and all(re.fullmatch("[0-9a-f]{24}", one) for one in ids)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [({b"x-pixelferry-timings": b"1"}, True), ({b"x-pixelferry-timings": b"0"}, False), ({}, False)],
)
def test_stages_are_timed_for_who_asks(header: dict[bytes, bytes], wanted: bool) -> None:
    async def stages(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await Response(str(scope["state"]["exchange"].tally.timed))(scope, receive, send)

    _, body = exchange(surrounded(stages), [b"x"], header)
    assert body["body"].decode() == str(wanted)


def test_headers_of_the_answer_are_kept() -> None:
    start, _ = exchange(surrounded(echo), [b"x"])
    assert [name for name, _ in start["headers"]] == [b"x-own", b"content-length", b"x-request-id"]


def test_what_is_no_request_passes_untouched() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.extend((scope, receive, send))

    async def receive() -> Any: ...

    async def send(message: Any) -> None: ...

    asyncio.run(surrounded(app)({"type": "lifespan"}, receive, send))
    assert seen == [{"type": "lifespan"}, receive, send]


@pytest.mark.parametrize(
    ("method", "url", "body", "status"),
    [
        ("GET", "/health/live", b"", 200),
        ("GET", "/nowhere", b"", 404),
        ("GET", "/chat", b"", 405),
        ("POST", "/chat", b"{", 400),
        ("POST", "/chat", b" " * 101, 413),
        ("POST", "/v1/chat/completions", b"{}", 429),
    ],
)
def test_every_answer_of_the_server_has_an_id(play: Play, method: str, url: str, body: bytes, status: int) -> None:
    async def scenario(scene: Scene) -> None:
        budget = BodyBudget(0 if status == 429 else 1000)
        transport = httpx.ASGITransport(app=create_app(scene.service, 100, budget))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.request(
                method, url, content=body, headers={"x-request-id": "mine", "content-type": "application/json"}
            )
        assert (answer.status_code, answer.headers["x-request-id"]) == (status, "mine")

    play(scenario)


def test_an_escaped_error_is_a_500_that_tells_only_the_id() -> None:
    status, headers, body = ask(surrounded(Failing()), [b"x"], {b"x-request-id": b"mine"})
    assert status == 500 and headers["x-request-id"] == "mine" and body["error"]["type"] == "server_error"
    assert re.fullmatch(r"the server failed \(request [0-9a-f]{24}\)", body["error"]["message"])


def test_the_log_tells_of_an_escaped_error_what_the_client_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    _, _, body = ask(surrounded(Failing()), [b"x"], {b"x-request-id": b"mine"})
    record = caplog.records[0]
    ours = body["error"]["message"].rpartition(" ")[2].rstrip(")")
    assert record.levelno == logging.ERROR
    assert record.getMessage() == f"request {ours} (x-request-id mine) failed"
    assert record.exc_info is not None and "secret" in str(record.exc_info[1])


def test_an_answer_that_has_begun_breaks_off(caplog: pytest.LogCaptureFixture) -> None:
    """A second start would be a defect of its own, and a last piece would make half an answer look whole."""
    begun = (
        {"type": "http.response.start", "status": 200, "headers": []},
        {"type": "http.response.body", "body": b"half", "more_body": True},
    )
    sent = exchange(surrounded(Failing(*begun)), [b"x"])
    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[0]["status"] == 200 and sent[1] == begun[1]
    assert [(record.levelname, record.name) for record in caplog.records] == [
        ("ERROR", "pixelferry.http"),
        ("ERROR", "pixelferry.access"),
    ]


def test_a_client_that_leaves_while_it_sends_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    assert exchange(surrounded(echo), [b"half a"], whole=False) == []
    assert caplog.records == []
