"""What the ingress hands on and what it keeps, over replicas that do as they are told."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from deploy.ray import ingress as module
from deploy.ray.forwarding import ForwardedRequest, Head, ReplicaFailed
from server.http.openapi.looks import ErrorsSeen
from server.http.pages import page_answers
from tests.deploy.ray.fake_replicas import COMMENT, EVENT, JSON, SSE, Exchange, FakeReplicas, Step, ingress_over

OK = Head(200, JSON)
DEAD = ReplicaFailed("ActorDiedError")


def run(replicas: FakeReplicas, *pieces: bytes, exchange: Exchange | None = None, **given: Any) -> Exchange:
    limits = {name: given.pop(name) for name in list(given) if name != "leaves"}
    return asyncio.run((exchange or Exchange()).ask(ingress_over(replicas, **limits), *pieces, **given))


def code(exchange: Exchange) -> str:
    found: str = json.loads(exchange.body)["error"]["code"]
    return found


def test_a_request_reaches_a_replica_as_its_client_sent_it() -> None:
    replicas = FakeReplicas(("r1", [Head(201, [*JSON, (b"date", b"now"), (b"x-request-id", b"mine")]), b"a", b"b"]))
    exchange = Exchange(
        "/v1/x%2Fy", "POST", (b"authorization", b"Bearer k"), (b"x-forwarded-for", b"9.9.9.9"),
        (b"connection", b"close"), (b"transfer-encoding", b"chunked"), (b"x-spaced", b" a b \t"),
    )  # fmt: skip
    exchange.scope["query_string"] = b"a=1"
    run(replicas, b'{"messages":', b' [{"role": "user", "content": "hi"}]}', exchange=exchange)
    assert (exchange.status, exchange.body, exchange.whole) == (201, b"ab", True)
    assert not {b"date", b"x-request-id"} & exchange.headers.keys(), "Serve's proxy has its own"
    (asked,) = replicas.asked
    assert (asked.method, asked.target) == (b"POST", b"/v1/x%2Fy?a=1")
    assert asked.body == b'{"messages": [{"role": "user", "content": "hi"}]}' and len(asked.digest) == 32
    assert sorted(asked.headers) == [
        (b"authorization", b"Bearer k"), (b"content-length", b"49"), (b"host", b"localhost"),
        (b"x-forwarded-for", b"203.0.113.7"), (b"x-request-id", b"mine"), (b"x-spaced", b"a b"),
    ]  # fmt: skip


def test_a_stream_passes_as_it_comes() -> None:
    exchange = run(FakeReplicas(("r1", [Head(200, SSE), COMMENT, EVENT, b"data: [DONE]\n\n"])))
    assert [message["body"] for message in exchange.sent[1:]] == [COMMENT, EVENT, b"data: [DONE]\n\n", b""]


@pytest.mark.parametrize(
    "steps",
    [[DEAD], [Head(503, JSON), b"{}"], [Head(500, JSON)], [Head(200, SSE), COMMENT, b'data: {"error":{}}\n\n'],
     [Head(200, SSE), COMMENT, DEAD], [Head(200, SSE), COMMENT, b'event: error\ndata: {"type":"error"}\n\n']],
)  # fmt: skip
def test_what_has_not_begun_is_tried_once_at_another_replica(steps: Any) -> None:
    replicas = FakeReplicas(("r1", steps), ("r2", [Head(200, SSE), EVENT]))
    exchange = run(replicas)
    assert exchange.status == 200 and exchange.whole
    assert exchange.body in (EVENT, COMMENT + EVENT)
    assert [asked.avoid for asked in replicas.asked] == ["", "r1"] and replicas.closed == 2


def test_the_second_word_is_the_last_one() -> None:
    failing: list[Step] = [Head(503, JSON), b'{"error": {"code": "engine_died"}}']
    replicas = FakeReplicas(("r1", [DEAD]), ("r2", failing))
    exchange = run(replicas)
    assert (exchange.status, code(exchange), len(replicas.asked)) == (503, "engine_died", 2)
    twice = run(FakeReplicas(("r1", failing), ("r2", [DEAD])))
    assert (twice.status, code(twice)) == (503, "engine_died"), "what the first one said tells more than a death"
    both = run(FakeReplicas(("r1", [DEAD]), ("r2", [DEAD])))
    assert (both.status, code(both)) == (503, "replica_died")
    alone = FakeReplicas(("r1", failing), n_others=0)
    assert code(run(alone)) == "engine_died" and len(alone.asked) == 1, "nobody else could answer"
    stream: list[Step] = [Head(200, SSE), COMMENT, b'data: {"error":{}}\n\n', b"data: [DONE]\n\n"]
    assert run(FakeReplicas(("r1", stream), n_others=0)).body == b"".join(
        one for one in stream if isinstance(one, bytes)
    )


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429])
def test_what_the_client_must_change_is_not_tried_again(status: int) -> None:
    replicas = FakeReplicas(("r1", [Head(status, JSON), b"{}"]))
    assert run(replicas).status == status and len(replicas.asked) == 1


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/chat/completions", b'data: {"error":'),
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":'),
        ("/v1/responses", b'event: error\ndata: {"type":"error","sequence_number":2,"code":"replica_died"'),
    ],
)
def test_a_stream_that_has_begun_ends_with_the_error_of_its_route(path: str, last: bytes) -> None:
    begun = b'event: response.created\ndata: {"t":"event: x"}\n\nevent: response.in_progress\ndata: {}\n\n'
    replicas = FakeReplicas(("r1", [Head(200, SSE), begun, DEAD]))
    exchange = run(replicas, exchange=Exchange(path))
    assert exchange.body.startswith(begun + last) and exchange.whole and b"(request mine)" in exchange.body
    assert len(replicas.asked) == 1


def test_another_answer_that_has_begun_is_cut() -> None:
    exchange = run(FakeReplicas(("r1", [OK, b'{"half":', DEAD])))
    assert (exchange.status, exchange.body, exchange.whole) == (200, b'{"half":', False)


@pytest.mark.parametrize(
    ("path", "event"),
    [
        ("/v1/chat/completions", {}),
        ("/v1/messages", {"type": "error", "request_id": "mine"}),
        ("/v1/responses", {"type": "error", "sequence_number": 0, "code": "queue_full", "message": "m", "param": None}),
    ],
)
def test_behind_comments_an_error_is_an_event_of_its_route(path: str, event: dict[str, Any]) -> None:
    """The 200 is out. A replica's whole answer is told as its stream would tell it."""
    replica = {key: event[key] for key in ("type", "request_id") if "request_id" in event}
    error = {"message": "m", "type": "rate_limit_error", "param": None, "code": "queue_full"}
    full: list[Step] = [Head(429, JSON), json.dumps({**replica, "error": error}).encode()]
    dying: list[Step] = [Head(200, SSE), COMMENT, DEAD]
    for scripts in ((dying, full), ([Head(503, JSON), full[1]], dying)):
        exchange = run(FakeReplicas(("r1", scripts[0]), ("r2", scripts[1])), exchange=Exchange(path))
        comment, named, told, end = re.split(rb"(event: error\n|)data: (.*)\n\n", exchange.body)
        assert (comment, bool(named), end) == (COMMENT, bool(event), b"") and exchange.whole
        assert json.loads(told) == {**event, "error": error}


def test_behind_comments_the_ingress_says_itself_that_nobody_answers() -> None:
    nobody = run(FakeReplicas(("r1", [Head(200, SSE), COMMENT, DEAD]), ("", [])))
    assert nobody.body.startswith(COMMENT + b"data: ") and nobody.whole


def test_a_client_that_leaves_takes_its_request_along() -> None:
    class Endless(FakeReplicas):
        async def forward(self, request: ForwardedRequest) -> Any:
            try:
                yield "r1"
                yield OK
                await asyncio.Event().wait()
            finally:
                self.closed += 1

    replicas = Endless()
    assert run(replicas, leaves=True).sent == [] and replicas.closed == 1


def test_bodies_are_bounded_alone_and_together() -> None:
    answer: list[Step] = [OK, b"{}"]
    too_large = run(FakeReplicas(), b"x" * 60, b"x" * 41)
    assert (too_large.status, code(too_large)) == (413, "body_too_large")
    replicas = FakeReplicas(("r1", answer), ("r1", answer))
    ingress = ingress_over(replicas, max_inflight_bytes=80)
    full = asyncio.run(Exchange().ask(ingress, b"x" * 81))
    assert (full.status, code(full)) == (429, "bodies_full")
    for _ in range(2):  # what was held is given back
        assert asyncio.run(Exchange().ask(ingress, b"x" * 80)).status == 200


def test_a_large_body_is_looked_through_as_well() -> None:
    body = json.dumps({"messages": [{"role": "user", "content": "x" * module.LARGE}]}).encode()
    replicas = FakeReplicas(("r1", [OK, b"{}"]))
    run(replicas, body, max_body_bytes=1 << 20, max_inflight_bytes=1 << 20)
    assert len(replicas.asked[0].digest) == 32


def test_nobody_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(module, "SECOND_SECONDS", 0.01)

    class Nobody(FakeReplicas):
        async def forward(self, request: ForwardedRequest) -> Any:
            await asyncio.Event().wait()
            yield "never"

    exchange = run(Nobody())
    assert (exchange.status, code(exchange)) == (503, "no_replica") and b"retry-after" in exchange.headers


@pytest.mark.parametrize(
    ("host", "allowed", "status"),
    [
        (b"localhost:8000", frozenset(), 200), (b"127.0.0.1", frozenset(), 200), (b"evil.example", frozenset(), 403),
        (b"llm.example.com", frozenset(("llm.example.com",)), 200), (b"evil.example", None, 200),
    ],
)  # fmt: skip
def test_the_ingress_checks_the_host(host: bytes, allowed: Any, status: int) -> None:
    exchange = Exchange()
    exchange.scope["headers"] = [(b"host", host)]
    replicas = FakeReplicas(("r1", [OK, b"{}"]))
    assert run(replicas, exchange=exchange, hosts=allowed).status == status
    assert [dict(asked.headers)[b"host"] for asked in replicas.asked] == [b"localhost"] * (status == 200)


@pytest.mark.parametrize(("statuses", "status"), [((503, 200), 200), ((503, 503), 503), ((), 503)])
def test_it_is_ready_while_one_replica_is(statuses: tuple[int, ...], status: int) -> None:
    replicas = FakeReplicas(("", []), ("", []))
    replicas.pages = [(f"r{one}", Head(one, JSON), b'{"error":{"code":"x"}}') for one in statuses]
    for path in ("/health/ready", "/ping"):
        assert run(replicas, exchange=Exchange(path, "GET")).status == status
    for path in ("/health", "/healthz", "/health/live"):
        assert run(FakeReplicas(), exchange=Exchange(path, "GET")).body == b'{"status":"live"}'


@pytest.mark.parametrize(("steps", "status"), [((200,), 200), ((503,), 503), ((ReplicaFailed("died"),), 503)])
def test_where_all_cannot_be_asked_one_that_answers_is_enough(steps: Sequence[Any], status: int) -> None:
    """As Serve itself says nothing of any while a node dies."""
    script = [Head(step, JSON) if isinstance(step, int) else step for step in steps]
    replicas = FakeReplicas(("r1", [*script, b'{"status":', b'"x"}']))
    exchange = run(replicas, exchange=Exchange("/health/ready", "GET"))
    assert exchange.status == status and (exchange.body == b'{"status":"x"}') == isinstance(steps[0], int)
    assert replicas.closed == 1 and [asked.target for asked in replicas.asked] == [b"/health/ready"] * 2


OWN = ("/metrics", "/status/errors")


@pytest.mark.parametrize("path", OWN)
def test_a_replica_is_asked_whether_the_key_will_do(path: str) -> None:
    replicas = FakeReplicas()
    key = (b"authorization", b"Bearer k")
    replicas.pages = [("r1", Head(401, JSON), b'{"error":{}}'), ("r2", Head(401, JSON), b'{"error":{}}')]
    refused = run(replicas, exchange=Exchange(path, "GET", key))
    assert refused.status == 401 and refused.headers[b"www-authenticate"] == b"Bearer"
    (asked,) = replicas.asked
    assert (asked.target, key in asked.headers) == (path.encode(), True)


@pytest.mark.parametrize("path", OWN)
def test_what_one_replica_alone_may_be_asked_is_answered_by_name_only(path: str) -> None:
    """A page whose name leads here (DNS rebinding) reads nothing, and other methods get what a server says."""
    exchange = Exchange(path, "GET")
    exchange.scope["headers"] = [(b"host", b"evil.example")]
    replicas = FakeReplicas(("r1", [Head(405, JSON), b"{}"]))
    assert (run(replicas, exchange=exchange).status, replicas.asked) == (403, [])
    assert run(replicas, exchange=Exchange(path, "POST")).status == 405


def test_metrics_are_those_of_all_and_its_own() -> None:
    replicas = FakeReplicas()
    replicas.pages = [("r1", Head(200, []), b"a 1\n"), ("r2", Head(200, []), b"a 2\n")]
    page = run(replicas, exchange=Exchange("/metrics", "GET")).body
    assert page.startswith(b'a{replica="r1"} 1\na{replica="r2"} 2\n') and b"ingress_replicas 2.0" in page


def errors_of(id_of: str, *seconds: int) -> bytes:
    """As a server answers, the newest first."""
    shown = [
        {
            "time": f"2026-11-26T12:00:{second:02}.000Z",
            "route": "/chat",
            "status": 400,
            "code": "c",
            "id": id_of,
            "count": 1,
        }
        for second in sorted(seconds, reverse=True)
    ]
    slow = {"time": "2026-11-26T12:00:00.000Z", "route": "/chat", "status": 200, "id": id_of, "stages": {}}
    counts = dict.fromkeys(("prompt_tokens", "cached_tokens", "media_tokens", "generation_tokens"), 1)
    slowest = [{**slow, **counts, "seconds": float(second)} for second in sorted(seconds, reverse=True)[:10]]
    return json.dumps({"errors": shown, "slowest": slowest}).encode()


def test_the_last_errors_are_those_of_all_the_newest_first() -> None:
    replicas = FakeReplicas()
    replicas.pages = [
        ("r1", Head(200, JSON), errors_of("a" * 24, *range(0, 60, 2))), ("r2", Head(503, JSON), b""),
        ("r3", Head(200, JSON), errors_of("b" * 24, *range(1, 60, 2))),
    ]  # fmt: skip
    answer = run(replicas, exchange=Exchange("/status/errors", "GET")).body
    slowest = ErrorsSeen.model_validate_json(answer).slowest
    assert [(one.seconds, one.replica) for one in slowest] == [
        (float(n), f"r{1 + 2 * (n % 2)}") for n in range(59, 49, -1)
    ]
    seen = ErrorsSeen.model_validate_json(answer).errors
    assert [one.time.second for one in seen] == [*range(59, 9, -1)]
    assert {(one.replica, one.id[0]) for one in seen} == {("r1", "a"), ("r3", "b")}
    assert run(FakeReplicas(), exchange=Exchange("/status/errors", "GET")).body == b'{"errors":[],"slowest":[]}'


def test_pages_are_open_and_need_no_replica() -> None:
    pages = page_answers("/llm")
    assert run(FakeReplicas(), exchange=Exchange("/llm", "GET"), pages=pages).headers[b"location"] == b"/llm/"
    for path in ("/status", "/status.js", "/"):
        exchange = run(FakeReplicas(), exchange=Exchange(path, "GET"), pages=pages)
        assert (exchange.status, exchange.body) == (200, pages[path].body)
        assert b"default-src 'none'" in exchange.headers[b"content-security-policy"]
    exchange = Exchange("/status", "GET")
    exchange.scope["headers"] = [(b"host", b"evil.example")]
    assert run(FakeReplicas(), exchange=exchange, pages=pages).status == 403
    replicas = FakeReplicas(("r1", [Head(404, JSON), b"{}"]))
    assert run(replicas, exchange=Exchange("/status", "GET")).status == 404, "with --page off a replica says so"


def test_a_prefix_of_the_path_is_one_for_the_replica_too() -> None:
    replicas = FakeReplicas(("r1", [Head(200, SSE), EVENT, DEAD]), ("r1", [OK, b"{}"]))
    replicas.pages = [("r1", Head(200, JSON), errors_of("a" * 24, 1))]
    ingress = ingress_over(replicas, root_path="/llm")
    errors = asyncio.run(Exchange("/llm/status/errors", "GET").ask(ingress))
    assert len(json.loads(errors.body)["errors"]) == 1
    assert asyncio.run(Exchange("/llm/health", "GET").ask(ingress)).body == b'{"status":"live"}'
    stream = asyncio.run(Exchange("/llm/v1/messages").ask(ingress))
    assert b"event: error" in stream.body, "in its route's form"
    asyncio.run(Exchange("/llmx").ask(ingress))
    assert [asked.target for asked in replicas.asked[1:]] == [b"/llm/v1/messages", b"/llmx"]
