"""GET /status/errors: what it tells of a request that failed, and what of it never comes out."""

import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import httpx

from server.http.app import create_app, create_waiting_app
from server.http.connection.bad_requests import BadRequests
from server.http.health import DownloadProgress
from server.http.middleware.keys import ApiKeys, digest_of
from server.http.openapi.looks import ErrorsSeen
from server.metrics import Metrics
from server.requests.refusal import timed_out
from tests.server.doubles import Scene
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.scenario import Play, answered_over_http

SECRET = "geheim"


def client(app: Any, **headers: str) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=behind_guard(app), client=("192.0.2.77", 4711))
    return httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)


async def told(http: httpx.AsyncClient) -> list[dict[str, Any]]:
    answer = await http.get("/status/errors")
    assert answer.status_code == 200 and ErrorsSeen.model_validate_json(answer.content)
    errors: list[dict[str, Any]] = answer.json()["errors"]
    return errors


def asked(play: Play, ask: Callable[[Scene, httpx.AsyncClient], Any], **options: Any) -> None:
    async def scenario(scene: Scene) -> None:
        async with client(create_app(scene.service, bodies(100, 1000), **options)) as http:
            await ask(scene, http)

    play(scenario)


def test_an_error_is_told_by_time_route_status_code_and_our_id(play: Play) -> None:
    async def ask(scene: Scene, http: httpx.AsyncClient) -> None:
        await http.get("/v1/models")
        first = await http.get(f"/v1/models/{SECRET}?key={SECRET}", headers={"x-request-id": f"{SECRET}-1"})
        second = await http.post(f"/{SECRET}/{SECRET}.txt", content=SECRET, headers={"x-request-id": f"{SECRET}-2"})
        third = await http.post("/chat", json={SECRET: 1})
        assert first.headers["x-request-id"] == f"{SECRET}-1" and SECRET in second.text + third.text
        errors = await told(http)
        assert [{**one, "time": "", "id": ""} for one in errors] == [
            {"time": "", "route": "/chat", "status": 400, "code": "unknown_field", "id": "", "count": 1},
            {"time": "", "route": "unmatched", "status": 404, "code": "route_not_found", "id": "", "count": 1},
            {"time": "", "route": "/v1/models/{name}", "status": 404, "code": "model_not_found", "id": "", "count": 1},
        ]
        assert errors[0]["id"] == third.headers["x-request-id"]
        assert all(re.fullmatch(r"[0-9a-f]{24}", one["id"]) for one in errors) and len({e["id"] for e in errors}) == 3
        now = datetime.now(timezone.utc)
        for one in errors:
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", one["time"])
            assert timedelta(0) <= now - datetime.fromisoformat(one["time"].replace("Z", "+00:00")) < timedelta(60)
        text = (await http.get("/status/errors")).text
        assert SECRET not in text and "192.0.2.77" not in text and "4711" not in text and "message" not in text
        assert (await http.head("/status/errors")).status_code == 200

    asked(play, ask)


def test_equal_errors_are_one_and_routes_of_openai_are_named(play: Play) -> None:
    async def ask(scene: Scene, http: httpx.AsyncClient) -> None:
        ids = [(await http.get("/nothing")).headers["x-request-id"] for _ in range(60)]
        await http.post("/v1/embeddings", json={"input": SECRET})
        await http.get(f"/v1/files/{SECRET}")
        found = [(one["route"], one["code"], one["count"]) for one in await told(http)]
        assert found == [
            ("/v1/files", "route_not_supported", 1), ("/v1/embeddings", "route_not_supported", 1),
            ("unmatched", "route_not_found", 60),
        ]  # fmt: skip
        assert (await told(http))[2]["id"] == ids[-1] and SECRET not in (await http.get("/status/errors")).text

    asked(play, ask)


def test_the_slowest_requests_stand_beside_them_with_their_stages(play: Play) -> None:
    async def ask(scene: Scene, http: httpx.AsyncClient) -> None:
        await http.get("/v1/models")
        answer = await answered_over_http(scene, http.post("/chat", json={"inputs": [{"text": SECRET}]}))
        assert answer.status_code == 200
        body = (await http.get("/status/errors")).content
        (slow,) = ErrorsSeen.model_validate_json(body).slowest
        assert (slow.route, slow.status, slow.id) == ("/chat", 200, answer.headers["x-request-id"])
        assert [name for name in slow.stages if "." not in name] == ["prepare", "queue", "prefill", "decode"]
        assert sum(taken for name, taken in slow.stages.items() if "." not in name) <= slow.seconds
        assert (slow.prompt_tokens, slow.media_tokens) == (answer.json()["usage"]["prompt_tokens"], 0)
        assert SECRET.encode() not in body

    asked(play, ask)

    asked(play, ask)


def test_it_is_guarded_as_the_metrics_are(play: Play) -> None:
    """By key and by name; what it refuses is not among the errors, as with every probe."""
    keys = ApiKeys((digest_of("sk-1"),), None)

    async def ask(scene: Scene, http: httpx.AsyncClient) -> None:
        for path in ("/metrics", "/status/errors"):
            for headers in ({}, {"authorization": "Bearer sk-2"}, {"authorization": "Bearer sk-1", "host": "a.test"}):
                status = 403 if "host" in headers else 401
                assert (await http.get(path, headers=headers)).status_code == status, path
                assert (await http.head(path, headers=headers)).status_code == status, path
            assert (await http.post(path, headers={"authorization": "Bearer sk-1"})).status_code == 405
        http.headers["authorization"] = "Bearer sk-1"
        scene.kill_engine()
        assert (await http.get("/health/ready")).status_code == 503
        assert await told(http) == []
        assert (await http.get("/metrics")).status_code == 200

    asked(play, ask, keys=keys, hosts=("test",))


def test_it_is_there_without_the_pages(play: Play) -> None:
    async def ask(scene: Scene, http: httpx.AsyncClient) -> None:
        assert (await http.get("/status")).status_code == 404
        (error,) = await told(http)
        assert error["route"] == "unmatched"

    asked(play, ask, page=False)


def test_below_a_path_it_is_the_same_route(play: Play) -> None:
    async def ask(scene: Scene, http: httpx.AsyncClient) -> None:
        await http.post("/llm/chat", json={})
        answer = await http.get("/llm/status/errors")
        assert [one["route"] for one in answer.json()["errors"]] == ["/chat"]

    asked(play, ask, root_path="/llm")


def test_it_is_there_while_a_model_is_downloaded(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        app = create_waiting_app(DownloadProgress(), Metrics("tiny", "1"), bodies(), "1.2.3")
        async with client(app) as http:
            await http.post("/chat", json={})
            assert [(one["route"], one["code"]) for one in await told(http)] == [("unmatched", "downloading")]

    play(scenario)


def test_what_never_became_a_request_is_named_so() -> None:
    class Transport:
        def get_extra_info(self, name: str) -> tuple[str, int]:
            return ("192.0.2.77", 4711)

    metrics = Metrics("tiny", "1")
    transport: Any = Transport()
    answer = BadRequests(metrics).answer(timed_out("the head did not come", "head_timeout"), transport)
    (error,) = metrics.errors.newest_first()
    assert (error.route, error.status, error.code) == ("malformed", 408, "head_timeout")
    assert f"x-request-id: {error.id}\r\n".encode() in answer
