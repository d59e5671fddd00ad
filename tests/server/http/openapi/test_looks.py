"""What probes and monitors are answered is what the document tells, ready or not."""

import httpx

from server.http.app import create_app
from server.http.health import DownloadProgress
from server.http.openapi.document import ROUTES
from server.http.openapi.looks import NOT_READY, HowFar
from tests.server.doubles import Scene
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.scenario import Play


def test_every_look_is_answered_as_the_document_tells(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        app = behind_guard(create_app(scene.service, bodies(), version="1.2.3"))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test") as client:
            looks = [route for route in ROUTES if "GET" in route.methods]
            for route in looks:
                answer = await client.get(route.path.format(name="tiny"))
                assert answer.status_code == 200, route.path
                assert answer.headers["content-type"].startswith(route.media_type)
                if hasattr(route.answer, "model_validate"):
                    route.answer.model_validate(answer.json())
            scene.kill_engine()
            NOT_READY.model_validate((await client.get("/ping")).json())
        assert len(looks) > 10

    play(scenario)


def test_a_download_is_told_as_the_document_tells() -> None:
    HowFar.model_validate(DownloadProgress().state[0])
