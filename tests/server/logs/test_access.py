"""Every answer is counted once and logged once, whatever it was and whatever stood in the request."""

import asyncio
import logging
import re
from typing import Any

import httpx
import pytest
from starlette.middleware import Middleware
from starlette.responses import Response

from server.http.app import create_app
from server.http.responses import data
from server.logs.access import address_of, level_of, plain_path
from server.logs.setup import ACCESS
from server.request_context import RequestContext, context_of
from tests.server.doubles import Scene
from tests.server.http.exchanges import behind_guard, bodies, exchange
from tests.server.http.exchanges import surrounded as behind_middleware
from tests.server.scenario import Play, answered_over_http
from tests.tables import each_of

Caplog = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def all_lines(caplog: Caplog) -> None:
    caplog.set_level(logging.DEBUG, ACCESS)


def lines(caplog: Caplog) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (record.levelname, record.getMessage(), getattr(record, "fields", {}))
        for record in caplog.records
        if record.name == ACCESS
    ]


PROBES = (
    "/health", "/healthz", "/health/live", "/health/ready", "/ping", "/metrics", "/status/errors", "/version", "/load",
)  # fmt: skip


class Turned:
    """A middleware that lets nobody in, as one that asks for keys."""

    def __init__(self, app: Any) -> None: ...

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        context_of(scope).error = "invalid_api_key"
        await Response(status_code=401)(scope, receive, send)


ANSWERS = [
    ("GET", "/v1/models", b"", "INFO GET /v1/models 200", None),
    ("GET", "/v1/models/my-secret", b"", "WARNING GET /v1/models/{name} 404", "model_not_found"),
    ("GET", "/v1/My%0ASecret/data:x/y?key=my-secret", b"", "WARNING GET /v1/.../.../y 404", "route_not_found"),
    ("DELETE", "/chat", b"", "WARNING DELETE /chat 405", "method_not_allowed"),
    ("BREW", "/chat", b"", "WARNING other /chat 405", "method_not_allowed"),
    ("POST", "/chat", b'{"my-secret": 1}', "WARNING POST /chat 400", "unknown_field"),
    ("POST", "/v1/chat/completions", b"my-secret", "WARNING POST /v1/chat/completions 400", "invalid_json"),
    ("POST", "/chat", b"x" * 101, "WARNING POST /chat 413", "body_too_large"),
]


@each_of(("method", "url", "body", "line", "error"), ANSWERS)
def test_each_answer_has_its_line_and_its_count(
    method: str, url: str, body: bytes, line: str, error: str | None, play: Play, caplog: Caplog
) -> None:
    async def scenario(scene: Scene) -> None:
        transport = httpx.ASGITransport(
            app=behind_guard(create_app(scene.service, bodies(100, 1000))), client=("192.0.2.1", 77)
        )
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.request(
                method,
                url,
                content=body,
                headers={"authorization": "Bearer my-secret", "content-type": "application/json"},
            )
        ((level, message, fields),) = lines(caplog)
        assert f"{level} {message}" == line and fields["client"] == "192.0.2.1:77" and fields["seconds"] >= 0
        assert fields["request_id"] == answer.headers["x-request-id"] and fields.get("error") == error
        assert not {"x_request_id", "prompt_tokens", "first_token_seconds", "ended"} & fields.keys()
        assert "my-secret" not in caplog.text and "Secret" not in caplog.text
        metrics = scene.metrics.render().decode()
        verb, path, status = message.split()
        route = "unknown" if error == "route_not_found" else path
        assert f'http_requests_total{{method="{verb}",route="{route}",status="{status}"}} 1.0' in metrics
        assert (f'mm_rejected_total{{reason="{error}"}} 1.0' in metrics) == (error is not None)
        ends = re.findall(r'request_success_total{finished_reason="(\w+)",.*} [^0]', metrics)
        assert ends == ([] if error is None else [error])

    play(scenario)


def test_probes_are_counted_and_leave_a_line_only_with_an_error(play: Play, caplog: Caplog) -> None:
    async def scenario(scene: Scene) -> None:
        transport = httpx.ASGITransport(app=behind_guard(create_app(scene.service, bodies(100, 1000))))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for url in PROBES:
                assert (await client.get(url)).status_code == 200
            assert lines(caplog) == []
            scene.kill_engine()
            answer = await client.get("/health/ready")
            await client.get("/health/nothing-of-ours")
        (level, message, fields), other = lines(caplog)
        assert other[:2] == ("WARNING", "GET /health/nothing-of-ours 404")
        assert (level, message, fields["error"]) == ("ERROR", "GET /health/ready 503", "engine_down")
        assert fields["request_id"] in answer.json()["error"]["message"]
        metrics = scene.metrics.render().decode()
        assert 'http_requests_total{method="GET",route="/health/ready",status="503"} 1.0' in metrics
        assert 'reason="engine_down"} 1.0' not in metrics, "a probe is no request that is turned away"
        assert 'finished_reason="engine_down",model_name="tiny"} 0.0' in metrics, "its series is there from the start"

    play(scenario)


@each_of("state", ["loading", "stopping"])
def test_a_probe_that_hears_of_a_start_or_an_end_leaves_no_line_and_a_request_does(
    state: str, play: Play, caplog: Caplog
) -> None:
    async def scenario(scene: Scene) -> None:
        if state == "loading":
            scene.kill_engine()
            scene.engine.info = None  # of an engine that was never ready
        else:
            scene.service.admission.draining = True
        transport = httpx.ASGITransport(app=behind_guard(create_app(scene.service, bodies(100, 1000))))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            for url in ("/health/ready", "/ping"):
                answer = await client.get(url)
                assert (answer.status_code, answer.json()["status"]) == (503, state)
            assert lines(caplog) == []
            await client.post("/chat", json={"inputs": [{"text": "x"}]})
        ((level, message, fields),) = lines(caplog)
        assert (level, message, fields["error"]) == ("ERROR", "POST /chat 503", state)

    play(scenario)


def test_what_is_turned_away_before_the_routes_has_its_route(play: Play, caplog: Caplog) -> None:
    async def scenario(scene: Scene) -> None:
        app = create_app(scene.service, bodies(100, 1000))
        app.user_middleware.insert(1, Middleware(Turned))
        transport = httpx.ASGITransport(app=behind_guard(app))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await client.post("/chat", headers={"x-request-id": "mine-1"})
        ((level, message, fields),) = lines(caplog)
        assert (level, message) == ("WARNING", "POST /chat 401")
        assert (fields["x_request_id"], fields["error"]) == ("mine-1", "invalid_api_key")

    play(scenario)


def surrounded(*messages: dict[str, Any], error: BaseException | None = None, code: str | None = None) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        context = context_of(scope)
        context.prompt_tokens, context.generation_tokens, context.first_token = 12, 3, context.received + 0.25
        for message in messages:
            await send(message)
        if code is not None:
            context_of(scope).error = code
        if error is not None:
            raise error

    return behind_middleware(app)


START = {"type": "http.response.start", "status": 200, "headers": []}
PIECE = {"type": "http.response.body", "body": data({}), "more_body": True}
END = {"type": "http.response.body", "body": b""}


def test_times_and_tokens_of_an_answer(caplog: Caplog) -> None:
    exchange(surrounded(START, PIECE, END), [b"x"])
    ((_, message, fields),) = lines(caplog)
    assert message == "POST /x 200" and fields["first_token_seconds"] == 0.25
    assert (fields["prompt_tokens"], fields["generation_tokens"]) == (12, 3) and "ended" not in fields


def test_one_slow_request_is_explained_by_its_line(play: Play, caplog: Caplog) -> None:
    """Its stages follow one another and add up to the time of its last token; the same that the client can ask for."""

    async def scenario(scene: Scene) -> None:
        transport = httpx.ASGITransport(app=behind_guard(create_app(scene.service, bodies(100, 1000))))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            body, wants = {"inputs": [{"text": "x"}]}, {"x-pixelferry-timings": "1"}
            answer = await answered_over_http(scene, client.post("/chat", json=body, headers=wants))
            await client.post("/chat", json={"inputs": 1})
        (_, _, fields), (_, _, refused) = lines(caplog)
        shown = answer.json()["usage"]["timings"]
        names = ("prepare", "queue", "prefill", "decode")
        for name in names:
            assert fields[f"{name}_seconds"] == pytest.approx(shown[name], abs=1e-4)
        assert 0 <= fields["worker_queue_seconds"] <= fields["prepare_seconds"] + 1e-4
        assert sum(fields[f"{name}_seconds"] for name in names) <= fields["seconds"] + 1e-3
        assert fields["cached_tokens"] == 0 and not {"media_tokens", "encode_seconds"} & fields.keys()
        assert not {f"{name}_seconds" for name in names} & refused.keys() and "cached_tokens" not in refused

    play(scenario)


@each_of(
    ("messages", "code", "line"),
    [
        ((START, PIECE, END), "stopping", "ERROR POST /x 200 stopping None"),
        ((START, PIECE, END), "engine_died", "ERROR POST /x 200 engine_died None"),
        ((START, PIECE), None, "INFO POST /x 200 None client_left"),
        ((), None, "INFO POST /x 499 None client_left"),
        (({**START, "status": 499}, END), None, "INFO POST /x 499 None client_left"),
        ((), "cut_off", "ERROR POST /x 499 cut_off None"),
    ],
)
def test_how_a_stream_ended(messages: Any, code: str | None, line: str, caplog: Caplog) -> None:
    exchange(surrounded(*messages, code=code), [b"x"])
    ((level, message, fields),) = lines(caplog)
    assert f"{level} {message} {fields.get('error')} {fields.get('ended')}" == line


def test_an_answer_that_the_servers_end_cuts_off(caplog: Caplog) -> None:
    """One that has begun breaks off; who was not answered yet is told."""
    with pytest.raises(asyncio.CancelledError):
        exchange(surrounded(START, PIECE, error=asyncio.CancelledError()), [b"x"])
    exchange(surrounded(error=asyncio.CancelledError()), [b"x"])
    begun, told = ((level, message, fields["error"]) for level, message, fields in lines(caplog))
    assert (begun, told) == (("ERROR", "POST /x 200", "cut_off"), ("ERROR", "POST /x 503", "stopping"))


def test_an_answer_of_a_defect(caplog: Caplog) -> None:
    exchange(surrounded(error=KeyError("x")), [b"x"])
    ((level, message, fields),) = lines(caplog)
    assert (level, message, fields["error"]) == ("ERROR", "POST /x 500", "internal")


@each_of(
    ("path", "shown"),
    [
        ("/v1/embeddings", "/v1/embeddings"),
        ("/", "/"),
        ("", ""),
        ("/a//b/", "/a//b/"),
        ("/x y/" + "k" * 33, "/.../..."),
        ("/é/data:image", "/.../..."),
        ("/1/2/3/4/5/6/7/8", "/1/2/3/4/5/6/..."),
    ],
)
def test_a_path_is_shown_as_far_as_it_looks_like_one(path: str, shown: str) -> None:
    assert plain_path(path) == shown


@each_of(
    ("client", "shown"),
    [
        (("127.0.0.1", 80), "127.0.0.1:80"),
        (("::1", 80), "[::1]:80"),
        (("192.0.2.1", 0), "192.0.2.1"),
        (("a secret\n", 0), "unknown"),
        (None, "unknown"),
    ],
)
def test_an_address_is_one(client: Any, shown: str) -> None:
    assert address_of(client) == shown


def test_a_request_without_an_answer_was_left() -> None:
    assert RequestContext("a").status == 499 and level_of(RequestContext("a")) == logging.INFO
