"""Bodies on their way into the ingress: whoever stops sending gives way, and is refused in the end."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.types import Message

from deploy.ray import bodies
from deploy.ray.forwarding import Head
from deploy.ray.ingress import Ingress
from server.http.connection.send_buffer import Clock
from tests.deploy.ray.fake_replicas import JSON, Exchange, FakeReplicas, ingress_over


class Seconds:
    """One passes with each look at the clock."""

    def __init__(self) -> None:
        self.passed = 0.0

    def look(self) -> float:
        self.passed += 1
        return self.passed - 1

    async def wait(self, seconds: int) -> None:
        """Until so many have passed."""
        until = self.passed + seconds
        while self.passed < until:
            await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def seconds(monkeypatch: pytest.MonkeyPatch) -> Seconds:
    """Looked at a hundred times a second."""
    found = Seconds()
    monkeypatch.setattr(bodies, "TICK_SECONDS", 0.01)
    monkeypatch.setattr(bodies, "Clock", lambda: Clock(found.look))
    return found


class Slow(Exchange):
    """It sends the first piece of its body, and the others as `more` says."""

    async def send_slowly(self, ingress: Ingress, first: bytes, more: Callable[[], Awaitable[Message]]) -> int:
        pieces = iter([{"type": "http.request", "body": first, "more_body": True}])

        async def receive() -> Message:
            return next(pieces, None) or await more()

        async def send(message: Message) -> None:
            self.sent.append(message)

        await ingress(self.scope, receive, send)
        return self.status


async def nothing_more() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def refused(exchange: Exchange) -> tuple[int, str]:
    return exchange.status, json.loads(exchange.body)["error"]["code"]


@pytest.mark.parametrize("limits", [{"receive_seconds": 3.0}, {"receive_seconds": 1e6, "body_seconds": 3.0}])
def test_a_body_that_stands_still_is_refused(limits: dict[str, Any]) -> None:
    """As by a server: Serve's proxy would wait for ever."""
    replicas = FakeReplicas(("r1", [Head(200, JSON), b"{}"]))

    async def life() -> None:
        ingress, slow = ingress_over(replicas, max_inflight_bytes=100, **limits), Slow()
        await asyncio.wait_for(slow.send_slowly(ingress, b"x" * 99, nothing_more), 10)
        assert refused(slow) == (408, "body_timeout")
        assert (await Exchange().ask(ingress, b"x" * 100)).status == 200, "nothing of it is held"

    asyncio.run(life())


def test_a_body_that_stands_still_gives_way_to_one_that_comes(seconds: Seconds) -> None:
    replicas = FakeReplicas(("r1", [Head(200, JSON), b"{}"]))

    async def life() -> None:
        ingress, slow = ingress_over(replicas, max_inflight_bytes=100, receive_seconds=1e6, body_seconds=1e6), Slow()
        waits = asyncio.create_task(slow.send_slowly(ingress, b"x" * 99, nothing_more))
        await seconds.wait(20)
        assert (await Exchange().ask(ingress, b"x" * 50)).status == 200
        await asyncio.wait_for(waits, 10)
        assert refused(slow) == (429, "bodies_full")

    asyncio.run(life())


def test_a_body_that_keeps_its_rate_is_answered_however_long_it_takes(seconds: Seconds) -> None:
    replicas = FakeReplicas(("r1", [Head(200, JSON), b"{}"]))
    left = iter(range(10))

    async def more() -> Message:
        await seconds.wait(2)
        return {"type": "http.request", "body": b"x" * 5, "more_body": next(left) < 9}

    async def life() -> None:
        ingress = ingress_over(replicas, receive_seconds=4.0, receive_rate=1)
        assert await Slow().send_slowly(ingress, b"x", more) == 200

    asyncio.run(life())
    assert len(replicas.asked[0].body) == 51


def test_a_client_beyond_its_share_gives_way_to_another() -> None:
    replicas = FakeReplicas(("r1", [Head(200, JSON), b"{}"]))

    async def life() -> None:
        ingress = ingress_over(replicas, max_inflight_bytes=100, receive_seconds=1e6, body_seconds=1e6)
        first, latest, other = Slow(), Slow(), Exchange()
        other.scope["client"] = ("198.51.100.1", 999)
        waits = [asyncio.create_task(one.send_slowly(ingress, b"x" * 45, nothing_more)) for one in (first, latest)]
        await asyncio.sleep(0)
        assert (await other.ask(ingress, b"x" * 50)).status == 200
        await asyncio.wait_for(waits[1], 10)
        assert refused(latest) == (429, "gave_way") and not waits[0].done()
        waits[0].cancel()

    asyncio.run(life())
