"""Every answer has a request id, and nothing internal leaves with an error that no route has caught."""

import asyncio
import json
import logging
import re
from typing import Any

import httpx
import pytest
from h11 import LocalProtocolError
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.http.app import create_app
from server.http.connection.request_body import BodyBudget, RequestBody
from server.http.middleware.keys import ApiKeys
from server.http.middleware.request_middleware import AnswerSender, read_head
from server.request_context import RequestContext, context_of
from tests.server.doubles import Scene
from tests.server.http.exchanges import Guard, ask, behind_guard, bodies, exchange, messages_of, surrounded
from tests.server.scenario import Play
from tests.tables import each_of


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
    await Response(context_of(scope).id, headers={"x-own": "kept"})(scope, receive, send)


def ids_of(*headers: tuple[bytes, bytes]) -> tuple[str, str]:
    """The id that the answer's header has and the one that the routes are told."""
    start, body = exchange(surrounded(echo), [b"x"], dict(headers))
    (found,) = (value for name, value in start["headers"] if name == b"x-request-id")
    return found.decode(), body["body"].decode()


def test_tools_that_were_left_out_are_named_whatever_they_are_called() -> None:
    """A client's own words, in a header: no line's end, no byte that stands in none, and no more than a KiB."""

    async def leaves_out(scope: Any, receive: Any, send: Any) -> None:
        context_of(scope).left_out = ("web_search", "custom a\r\nset-cookie: x, \u00e9", "mcp " + "y" * 60) * 40
        await echo(scope, receive, send)

    for app, n in ((leaves_out, 1), (echo, 0)):
        start, _ = exchange(surrounded(app), [b"x"])
        found = [value for name, value in start["headers"] if name == b"x-pixelferry-tools-left-out"]
        assert len(found) == n
        for value in found:
            assert value.startswith(b"web_search, custom a??set-cookie: x? ?, mcp yyy") and len(value) <= 1100


@each_of("mine", [b"7", b"mine-1.a_Z", b"x" * 64])
def test_a_short_and_harmless_request_id_is_echoed_and_never_used_as_ours(mine: bytes) -> None:
    shown, told = ids_of((b"x-request-id", mine))
    assert shown == mine.decode() and re.fullmatch("[0-9a-f]{24}", told)


@each_of(
    "strange",
    [b"", b"x" * 65, b"a b", b"a\tb", b"a\n", b"a\r\nset-cookie: b", b"\x1b[31m", b"<b>", b"../a", b"%0a", b"\xe9"],
)
def test_a_request_id_that_could_harm_a_log_is_replaced(strange: bytes) -> None:
    shown, told = ids_of((b"x-request-id", strange))
    assert shown == told and re.fullmatch("[0-9a-f]{24}", shown)


def test_requests_without_an_id_get_one_each() -> None:
    ids = {ids_of()[0] for _ in range(20)}
    assert len(ids) == 20 and all(re.fullmatch("[0-9a-f]{24}", one) for one in ids)


@each_of(
    ("header", "wanted"),
    [({b"x-pixelferry-timings": b"1"}, True), ({b"x-pixelferry-timings": b"0"}, False), ({}, False)],
)
def test_stages_are_timed_for_who_asks(header: dict[bytes, bytes], wanted: bool) -> None:
    async def stages(scope: Any, receive: Any, send: Any) -> None:
        await Request(scope, receive).body()
        await Response(str(context_of(scope).wants_timings))(scope, receive, send)

    _, body = exchange(surrounded(stages), [b"x"], header)
    assert body["body"].decode() == str(wanted)


def test_headers_of_the_answer_are_kept() -> None:
    start, _ = exchange(surrounded(echo), [b"x"])
    assert [name for name, _ in start["headers"]] == [b"x-own", b"content-length", b"x-request-id"]


@each_of(
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
        app = create_app(scene.service, bodies(100, 0 if status == 429 else 1000))
        transport = httpx.ASGITransport(app=behind_guard(app))
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
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"8")]},
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


@each_of(
    ("path", "seen"),
    [
        ("/llm/v1/models", "/v1/models"), ("/v1/models", "/v1/models"), ("/llm/", "/"), ("/llm", "/llm"),
        ("/llmx/v1", "/llmx/v1"), ("/llm/llm/x", "/llm/x"), ("/x/llm/y", "/x/llm/y"),
    ],
)  # fmt: skip
def test_a_proxys_prefix_is_taken_off_where_it_stands_in_front_of_a_route(path: str, seen: str) -> None:
    paths: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        paths.append(scope["path"])

    messages_of(surrounded(app, root_path="/llm"), [b""], [(b"host", b"a")], path=path)
    assert paths == [seen]


class Noting(Guard):
    """A stand-in that notes what it is told."""

    def __init__(self, told: list[Any], *, closing: bool = False) -> None:
        super().__init__()
        self.told, self.closing, self.closes_after = told, closing, True

    async def drain(self) -> None:
        self.told.append("drained")

    def ended(self) -> None:
        self.told.append("ended")

    def is_closing(self) -> bool:
        return self.closing


def told_of(*messages: dict[str, Any], whole: bool = True, closing: bool = False, fails: bool = False) -> list[Any]:
    told: list[Any] = []
    guard: Any = Noting(told, closing=closing)

    async def send(message: Any) -> None:
        told.append((message["type"].rpartition(".")[2], message.get("body"), message.get("more_body", False)))
        if message["type"] == "http.response.start":
            assert message["headers"] == [(b"a", b"b"), (b"x-request-id", b"id"), (b"connection", b"close")]
        if fails:
            raise LocalProtocolError("it has ended")

    async def receive() -> Any:
        raise AssertionError("the guard reads")

    async def scenario() -> None:
        body = RequestBody(receive, bodies(), lambda: None, whole=whole)
        answer = AnswerSender(guard, body, RequestContext("id"), send)
        for message in messages:
            await answer.send(dict(message))

    asyncio.run(scenario())
    return told


START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}


def test_the_last_byte_ends_an_answer() -> None:
    body = {"type": "http.response.body", "body": b"x", "more_body": True}
    seen = told_of(START, body, {**body, "more_body": False})
    assert seen == [("start", None, False), ("body", b"x", True), ("body", b"x", False), "ended"]


def test_a_body_that_nobody_read_is_read_before_the_end() -> None:
    seen = told_of(START, {"type": "http.response.body", "body": b"x"}, whole=False)
    assert seen == [("start", None, False), ("body", b"x", True), "drained", ("body", b"", False), "ended"]


def test_what_the_client_ended_is_no_defect_and_all_else_is() -> None:
    assert told_of(START, closing=True, fails=True) == [("start", None, False)]
    with pytest.raises(LocalProtocolError):
        told_of(START, fails=True)


@each_of(
    ("field", "found"),
    [((b"content-length", b"0"), False), ((b"content-length", b"1"), True), ((b"transfer-encoding", b"x"), True)],
)
def test_a_head_announces_a_body(field: tuple[bytes, bytes], found: bool) -> None:
    head = read_head({"headers": [(b"host", b"a"), field]})
    assert bool(head.chunked or head.length) is found


@each_of("path", ["/v1/messages", "/v1/messages/count_tokens", "/v1/messages/none", "/chat"])
def test_what_is_refused_before_a_route_has_its_form(path: str) -> None:
    """Anthropic's clients tell errors by its types; all others see what they always saw."""

    async def read(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body"):
            pass

    def refused(budget: BodyBudget, chunks: list[bytes], **options: Any) -> tuple[int, bytes, dict[bytes, bytes]]:
        app = surrounded(read, budget=budget, **options)
        head = [(b"host", b"a"), (b"content-length", str(sum(map(len, chunks))).encode())]
        sent = messages_of(app, chunks, head, path=path)
        return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:]), dict(sent[0]["headers"])

    told = {}
    for status, raw, headers in (
        refused(bodies(), [b"x"], keys=ApiKeys((b"\x00" * 32,), None)),
        refused(bodies(max_body=10), [b"x" * 11]),
    ):
        body = json.loads(raw)
        assert int(headers[b"content-length"]) == len(raw)
        assert (b"request-id" in headers) == (path != "/chat") == (body.get("type") == "error")
        told[status] = body["error"]["type"]
    ours = {401: "invalid_request_error", 413: "invalid_request_error"}
    assert told == (ours if path == "/chat" else {401: "authentication_error", 413: "request_too_large"})
