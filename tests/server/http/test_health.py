"""What probes and gateways ask of a server whose children die, and what a page of another origin may."""

import hashlib

import httpx

from server.http.app import create_app
from server.http.middleware.keys import ApiKeys
from tests.server.doubles import Scene
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.scenario import Play


def client_of(
    scene: Scene, *origins: str, keys: ApiKeys | None = None, hosts: tuple[str, ...] | None = None
) -> httpx.AsyncClient:
    app = create_app(scene.service, bodies(), version="1.2.3", origins=origins, keys=keys, hosts=hosts)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=behind_guard(app)), base_url="http://test")


def test_every_503_says_when_to_come_back(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        async with client_of(scene) as client:
            ready = await client.get("/health/ready")
            assert ready.status_code == 200 and "retry-after" not in ready.headers
            scene.kill_worker()
            for status in ("workers_down", "engine_down"):
                answer = await client.get("/health/ready")
                assert answer.status_code == 503 and int(answer.headers["retry-after"]) >= 1
                assert answer.json()["status"] == answer.json()["error"]["code"] == status
                assert (await client.head("/health/ready")).status_code == 503
                if status == "workers_down":
                    scene.kill_engine()

    play(scenario)


def test_what_probes_ask(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        async with client_of(scene) as client:
            for url in ("/health", "/healthz", "/health/live"):
                assert (await client.get(url)).json() == {"status": "live"}
            assert (await client.get("/version")).json() == {"version": "1.2.3"}
            assert (await client.get("/load")).json() == {"server_load": 0}
            for method in ("GET", "POST", "HEAD"):
                assert (await client.request(method, "/ping")).status_code == 200
            scene.kill_engine()
            assert (await client.get("/health")).status_code == 200, "it lives"
            for method in ("GET", "POST", "HEAD"):
                assert (await client.request(method, "/ping")).status_code == 503, "it cannot answer"

    play(scenario)


ASKS = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


def test_a_page_of_a_named_origin_may_call(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        async with client_of(scene, "https://a.example") as client:
            asked = await client.options("/v1/chat/completions", headers={"origin": "https://a.example", **ASKS})
            assert asked.status_code == 200 and "x-request-id" in asked.headers
            assert asked.headers["access-control-allow-origin"] == "https://a.example"
            assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
            assert "access-control-allow-credentials" not in asked.headers
            for body in (b"{}", b"x" * (2 << 20)):  # refused by a route, and by the limit of bodies
                sent = {"origin": "https://a.example", "content-type": "application/json"}
                answer = await client.post("/chat", content=body, headers=sent)
                assert answer.status_code in (400, 413)
                assert answer.headers["access-control-allow-origin"] == "https://a.example"
                assert "X-Request-Id" in answer.headers["access-control-expose-headers"]
            other = await client.options("/chat", headers={"origin": "https://b.example", **ASKS})
            assert other.status_code == 400 and "access-control-allow-origin" not in other.headers
            assert other.json()["error"]["code"] == "cors_refused" and other.headers["vary"].startswith("Origin")

    play(scenario)


def test_a_page_can_read_that_it_needs_a_key(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keys = ApiKeys((hashlib.sha256(b"sk-1").digest(),), None)
        async with client_of(scene, "https://a.example", keys=keys) as client:
            asked = await client.options("/chat", headers={"origin": "https://a.example", **ASKS})
            assert asked.status_code == 200, "a browser asks without the header that it asks about"
            for key, status in (("sk-2", 401), ("sk-1", 200)):
                sent = {"origin": "https://a.example", "authorization": f"Bearer {key}"}
                answer = await client.get("/version", headers=sent)
                assert answer.status_code == status and "x-request-id" in answer.headers
                assert answer.headers["access-control-allow-origin"] == "https://a.example"

    play(scenario)


def test_without_origins_no_page_may_call(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        async with client_of(scene) as client:
            asked = await client.options("/chat", headers={"origin": "https://a.example", **ASKS})
            assert asked.status_code == 405
            answer = await client.get("/health", headers={"origin": "https://a.example"})
            assert not [name for name in answer.headers if name.startswith("access-control")]
        async with client_of(scene, "*") as client:
            answer = await client.get("/health", headers={"origin": "https://any.example"})
            assert answer.headers["access-control-allow-origin"] == "*"

    play(scenario)


def test_a_page_may_ask_whether_it_may_by_every_name_and_call_by_this_servers(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        origin = {"origin": "https://a.example"}
        async with client_of(scene, "https://a.example", hosts=("llm.example.com",)) as client:
            for host in ("llm.example.com", "localhost:8000"):
                asked = await client.options("/chat", headers={**origin, **ASKS, "host": host})
                assert asked.status_code == 200
                assert (await client.get("/v1/models", headers={"host": host, **origin})).status_code == 200
            refused = await client.get("/v1/models", headers={"host": "evil.example", **origin})
            assert refused.status_code == 403 and refused.headers["access-control-allow-origin"] == "https://a.example"
            assert refused.json()["error"]["code"] == "host_not_allowed"

    play(scenario)
