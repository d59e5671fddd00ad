"""/tokenize while its worker counts: a drain and a client that leaves end it as they end a chat."""

import asyncio
import json
from typing import Any

import pytest

from server.http.app import create_app
from server.http.large_bodies import LargeBodies
from server.http.reading import LARGE_BYTES
from server.http.text_lengths import FEWEST
from tests.server.doubles import Scene, prepared, until
from tests.server.http.exchanges import behind_guard, bodies
from tests.server.scenario import Play


class Round:
    """One POST of a text to /tokenize, from the client's side."""

    def __init__(self, scene: Scene, body: bytes = b'[{"text": "Hi"}]') -> None:
        self.body = body
        self.sent: list[Any] = []
        self.left = asyncio.Event()
        self._asked = False
        app = behind_guard(create_app(scene.service, bodies()))
        scope: dict[str, Any] = {
            "type": "http", "method": "POST", "path": "/tokenize", "raw_path": b"/tokenize", "query_string": b"",
            "headers": [(b"host", b"test"), (b"content-type", b"application/json")], "scheme": "http",
            "server": ("test", 80), "client": ("10.0.0.1", 1), "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        self.task = asyncio.create_task(app(scope, self.receive, self.send))

    async def receive(self) -> Any:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": self.body, "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def answer(self) -> tuple[int, Any]:
        """Status and body, which is JSON."""
        assert (b"content-type", b"application/json") in self.sent[0]["headers"]
        return self.sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in self.sent))


async def counting(scene: Scene) -> tuple[Round, str]:
    """An exchange whose worker has the job, and the request's id."""
    exchange = Round(scene)
    await until(lambda: scene.to_worker())
    name: str = scene.to_worker()[-1].request_id
    return exchange, name


def test_a_count_is_answered(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        exchange, name = await counting(scene)
        job = scene.workers.slots[0].job
        assert job is not None and job.client == "10.0.0.1" and job.cost.lane == "text"
        scene.workers.slots[0].on_message(prepared(name, 3))
        await exchange.task
        expected = {"ids": [0, 1, 2], "count": 3, "media": [], "max_model_len": 1000, "tokens": [0, 1, 2]}
        assert exchange.answer() == (200, {**expected, "token_strs": None})

    play(scenario)


def test_a_drain_that_runs_out_of_time_answers_503(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        exchange, name = await counting(scene)
        await scene.service.admission.drain(0.01)
        await exchange.task
        status, body = exchange.answer()
        assert (status, body["error"]["code"]) == (503, "stopping")
        scene.workers.slots[0].on_message(prepared(name))  # too late; nobody reads it

    play(scenario)


def test_a_client_that_leaves_frees_its_place(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        exchange, name = await counting(scene)
        assert scene.service.admission.n_active == 1
        exchange.left.set()
        await exchange.task
        assert scene.service.admission.n_active == 0
        scene.workers.slots[0].on_message(prepared(name))  # too late; nobody reads it

    play(scenario)


def test_a_large_body_is_read_for_its_client_and_by_the_models_length(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[str] = []
    read = LargeBodies.read

    async def noted(bodies: LargeBodies, client: str, *rest: Any) -> Any:
        clients.append(client)
        return await read(bodies, client, *rest)

    monkeypatch.setattr(LargeBodies, "read", noted)

    async def scenario(scene: Scene) -> None:
        counted = Round(scene, b'[{"text": "Hi"}]' + b" " * LARGE_BYTES)
        await until(lambda: scene.to_worker())
        scene.workers.slots[0].on_message(prepared(scene.to_worker()[-1].request_id, 3))
        await counted.task
        too_long = Round(scene, b'[{"text": "%b"}]' % (b"Hi. " * (FEWEST // 4 + 1)))
        await too_long.task
        status, body = too_long.answer()
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded") and "1000 tokens" in str(body)
        assert clients == ["10.0.0.1"] * 2

    play(scenario)
