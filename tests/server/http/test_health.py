"""What /health/ready says of a server whose children die, over its own routes."""

import httpx

from server.http.app import create_app
from server.http.body_limits import BodyBudget
from tests.server.doubles import Scene
from tests.server.scenario import Play


def client_of(scene: Scene) -> httpx.AsyncClient:
    app = create_app(scene.service, 1 << 20, BodyBudget(1 << 20))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


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
