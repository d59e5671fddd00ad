"""What of a replica's answers is tried elsewhere once: failures of its own, and nothing that a client did."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from deploy.ray.answer import FirstFailed, ForwardedAnswer
from deploy.ray.forwarding import Head, Piece


def taken(status: int, *, retry: bool) -> list[Any]:
    """What the client was sent."""
    sent: list[Any] = []

    async def pieces() -> AsyncGenerator[Piece, None]:
        yield b"{}"

    async def send(message: Any) -> None:
        sent.append(message)

    answer = ForwardedAnswer({"type": "http", "path": "/chat"}, send)
    asyncio.run(answer.take("r1", Head(status, []), pieces(), retry=retry))
    return sent


def test_failures_of_a_replica_are_tried_elsewhere_once() -> None:
    for status in (500, 502, 503, 504):
        with pytest.raises(FirstFailed):
            taken(status, retry=True)
        assert taken(status, retry=False)[0]["status"] == status
    for status in (200, 400, 404, 413, 429):
        assert taken(status, retry=True)[0]["status"] == status
