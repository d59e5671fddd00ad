"""The guard hears of each step of an answer, and a body that nobody read is read before its end."""

import asyncio
from typing import Any

import pytest
from h11 import LocalProtocolError

from server.http.connection.telling import begin, telling

START = {"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]}


class Guard:
    """A stand-in that notes what it is told."""

    def __init__(self, told: list[Any], *, owes_body: bool = False, closing: bool = False) -> None:
        self.told, self.owes_body, self.outbox = told, owes_body, self
        self.is_closing = lambda: closing

    async def asked(self, scope: Any, *, has_body: bool) -> None:
        self.told.append(has_body)

    def begins(self) -> list[tuple[bytes, bytes]]:
        return [(b"connection", b"close")]

    async def drain(self, receive: Any) -> None:
        self.told.append("drained")

    def ended(self) -> None:
        self.told.append("ended")


def told_of(guard: Any, *messages: Any, fails: bool = False) -> list[Any]:
    async def send(message: Any) -> None:
        guard.told.append((message["type"].rpartition(".")[2], message.get("body"), message.get("more_body", False)))
        if message["type"] == "http.response.start":
            assert message["headers"] == [(b"a", b"b"), (b"connection", b"close")]
        if fails:
            raise LocalProtocolError("it has ended")

    async def receive() -> Any:
        raise AssertionError("the guard reads")

    async def scenario() -> None:
        tell = telling(guard, receive, send)
        for message in messages:
            await tell(dict(message))

    asyncio.run(scenario())
    told: list[Any] = guard.told
    return told


def test_the_last_byte_ends_an_answer() -> None:
    body = {"type": "http.response.body", "body": b"x", "more_body": True}
    seen = told_of(Guard([]), START, body, {**body, "more_body": False})
    assert seen == [("start", None, False), ("body", b"x", True), ("body", b"x", False), "ended"]


def test_a_body_that_nobody_read_is_read_before_the_end() -> None:
    seen = told_of(Guard([], owes_body=True), START, {"type": "http.response.body", "body": b"x"})
    assert seen == [("start", None, False), ("body", b"x", True), "drained", ("body", b"", False), "ended"]


def test_what_the_client_ended_is_no_defect_and_all_else_is() -> None:
    assert told_of(Guard([], closing=True), START, fails=True) == [("start", None, False)]
    with pytest.raises(LocalProtocolError):
        told_of(Guard([]), START, fails=True)


@pytest.mark.parametrize(
    ("field", "has_body"),
    [((b"content-length", b"0"), False), ((b"content-length", b"1"), True), ((b"transfer-encoding", b"x"), True)],
)
def test_a_head_announces_a_body(field: tuple[bytes, bytes], has_body: bool) -> None:
    guard: Any = Guard([])
    asyncio.run(begin(guard, {"headers": [(b"host", b"a"), field]}))
    assert guard.told == [has_body]
