"""One short answer and two beside each other, as deltas; both dialects are asked to write them."""

import asyncio
import json
from typing import Any

from model.engine.messages import Token
from server.http.responses import CollectingSink
from server.requests.answer import Delta
from tests.server.doubles import prepared

TOKENS = (
    Token(id=65, logprob=-0.5, top=((65, -0.5), (66, -1.0))),
    Token(id=151, logprob=-2.0),
    Token(id=9999, logprob=-3.0),
)
ACCEPTED = prepared("chat-1", 10, media=2)  # two pictures of two tokens
DELTAS = [
    Delta(text='a "quote"\n', tokens=TOKENS[:1]),
    Delta(text="", tokens=TOKENS[1:2]),
    Delta(text="\u2028你", tokens=TOKENS[2:], finish="stop"),
]
SEVERAL = [
    Delta(index=1, text="x", tokens=TOKENS[:1]),
    Delta(index=0, text="a", tokens=TOKENS[1:2]),
    Delta(index=1, text="", tokens=TOKENS[1:2], finish="stop"),
    Delta(index=0, text="b", tokens=TOKENS[2:], finish="length"),
]


def parse(event: bytes) -> Any:
    """The JSON of one event, which has the form of one."""
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])


def collected(deltas: list[Delta]) -> list[Delta]:
    """Each answer whole, once every delta has come."""

    async def fill() -> list[Delta]:
        sink = CollectingSink()
        await sink.accept(ACCEPTED)
        for delta in deltas:
            await sink.write(delta)
        return sink.answers

    return asyncio.run(fill())
