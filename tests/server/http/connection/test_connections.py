"""Who gives way when there are too many, and whose time is up: the oldest first."""

import asyncio
from typing import Any

import pytest

from configs.serve import HttpConfig
from server.http.connection.connections import (
    AT_ONCE,
    MADE_ROOM,
    REST_SECONDS,
    Connections,
    State,
)
from server.http.connection.request_body import BodyBudget, RequestBody


class One:
    """A connection that notes what it is told, and fails where the test wants it to."""

    def __init__(self, told: list[str], name: str, *, fails: bool = False) -> None:
        self.told, self.name, self.fails = told, name, fails
        self.spent = 0.0
        self.state: State = "answer"

    def give_way(self) -> None:
        self.told.append(f"{self.name} gives way")

    def head_overdue(self) -> None:
        self.told.append(f"{self.name} is overdue")

    def rested(self) -> None:
        self.told.append(f"{self.name} rested")

    def check_body(self) -> None:
        self.told.append(f"{self.name} sends")
        assert not self.fails

    def turn(self) -> None:
        self.told.append(f"{self.name} has a turn")
        assert not self.fails

    def abort(self) -> None:
        self.told.append(f"{self.name} is closed")


def stand_in(told: list[str], name: str) -> Any:
    """A stand-in for a guard."""
    return One(told, name)


async def nothing() -> Any: ...


def body(connections: Connections) -> RequestBody:
    return RequestBody(nothing, BodyBudget(connections.config, connections.clock), lambda: None, whole=False)


def some(names: str, **bounds: int) -> tuple[Connections, list[str], list[Any]]:
    connections = Connections(HttpConfig(**bounds))  # type: ignore[arg-type]
    told: list[str] = []
    ones = [stand_in(told, name) for name in names]
    for one in ones:
        connections.enter(one)
    return connections, told, ones


def test_silent_ones_give_way_before_resting_ones_and_those_on_time_never() -> None:
    connections, told, (a, b, c, d) = some("abcd", max_connections=4)
    for one in (a, b):
        connections.becomes(one, "body", body(connections))
        connections.becomes(one, "answer")
    connections.becomes(a, "rest")
    late = [stand_in(told, name) for name in "efghi"]
    for one in late[:2]:
        assert connections.enter(one)
        connections.becomes(one, "body", its := body(connections))
        its.took(1)
    assert told == ["c gives way", "d gives way"]
    assert connections.enter(late[2]) and told[-1] == "a gives way"
    connections.becomes(late[2], "body", its := body(connections))
    its.took(1)
    assert not connections.enter(late[3]), "all are busy"
    assert connections.enter(late[4]) and told[-1] == "h gives way", "the one too many has asked for nothing yet"
    for one in (c, d, a):
        connections.leave(one)
    assert connections.n == 6


def test_a_head_has_its_time_from_the_first_byte_after_a_rest() -> None:
    connections, told, (a, b) = some("ab", receive_seconds=30)
    connections.clock.now = 20
    connections.becomes(a, "body", body(connections))
    connections.becomes(a, "answer")
    connections.becomes(a, "rest")
    connections.clock.now = 30
    connections.tick()
    assert told == ["b is overdue"]
    connections.clock.now = 100
    connections.becomes(a, "head")
    connections.clock.now = 129
    connections.tick()
    assert told == ["b is overdue"]
    connections.clock.now = 130
    connections.tick()
    connections.tick()
    assert told == ["b is overdue", "a is overdue"]


def test_bodies_are_looked_at_while_they_come() -> None:
    connections, told, (a, b) = some("ab")
    connections.becomes(a, "body", body(connections))
    connections.tick()
    connections.becomes(a, "answer")
    connections.becomes(b, "body", body(connections))
    connections.leave(b)
    connections.tick()
    assert told == ["a sends"]


def test_whoever_rests_long_enough_is_closed() -> None:
    connections, told, (a, _) = some("ab", receive_seconds=1000)
    connections.becomes(a, "body", body(connections))
    connections.becomes(a, "answer")
    connections.becomes(a, "rest")
    connections.clock.now = REST_SECONDS - 1
    connections.tick()
    assert told == []
    connections.clock.now = REST_SECONDS
    connections.tick()
    connections.tick()
    assert told == ["a rested"]


def test_bodies_that_lag_give_way_the_last_one_first() -> None:
    connections, told, ones = some("abcd", max_connections=4)
    bodies = [body(connections) for _ in ones]
    for one, its in zip(ones, bodies, strict=True):
        connections.becomes(one, "body", its)
    for its in bodies:
        its.took(1)
    assert not connections.enter(stand_in(told, "e")), "none of them is late"
    connections.clock.now = 2
    bodies[0].renew()
    bodies[2].took(1 << 13)
    assert connections.enter(stand_in(told, "f"))
    assert told == ["e gives way"], "it has asked for nothing yet, and has had time"
    assert connections.enter(stand_in(told, "g"))
    assert told[1:] == ["b gives way", "d gives way", "c gives way"], "all that lag, the one furthest behind first"
    assert connections.enter(stand_in(told, "h")) and len(told) == 4, "those are on their way out"


def test_whoever_has_only_just_come_gives_way_before_whoever_rests() -> None:
    connections, told, (a, b) = some("ab", max_connections=2)
    connections.becomes(a, "body", body(connections))
    connections.becomes(a, "answer")
    connections.becomes(a, "rest")
    assert connections.enter(c := stand_in(told, "c")) and told == ["b gives way"]
    connections.leave(b)
    connections.clock.now = 0.5
    assert connections.enter(d := stand_in(told, "d")) and told[1:] == ["c gives way"]
    connections.becomes(d, "body", body(connections))
    assert connections.enter(e := stand_in(told, "e")) and told[2:] == ["d gives way"], "nothing of its body has come"
    for one in (c, d):
        connections.leave(one)
    its = body(connections)
    connections.becomes(e, "body", its)
    its.took(1)
    assert connections.enter(stand_in(told, "f")) and told[3:] == ["a gives way"]


def test_a_flood_of_stalled_bodies_is_looked_through_once_for_many() -> None:
    connections, told, ones = some("x" * 1000, max_connections=1000)
    for one in ones:
        connections.becomes(one, "body", body(connections))
    connections.clock.now = 5
    assert connections.enter(stand_in(told, "new")) and len(told) == MADE_ROOM


def test_what_goes_wrong_with_one_ends_that_one(caplog: pytest.LogCaptureFixture) -> None:
    connections, told, (a, b) = some("ab")
    a.fails = True
    for one in (a, b):
        connections.becomes(one, "body", body(connections))
    connections.tick()
    assert told == ["a sends", "a is closed", "b sends"]
    assert [record.getMessage() for record in caplog.records] == ["a connection failed and is closed"]


def test_turns_go_to_whoever_has_taken_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose pieces are dear comes after all that are cheap; one that fails ends alone; nobody starves."""
    now = 0.0
    monkeypatch.setattr("server.http.connection.connections.time.perf_counter", lambda: now)
    connections, told, (a, b, c, d) = some("abcd")

    class Dear(One):
        def turn(self) -> None:
            nonlocal now
            now += 0.010
            super().turn()
            connections.queue(dear)

    dear: Any = Dear(told, "dear")

    async def scenario() -> None:
        a.fails = True
        for one in (dear, a, b):
            connections.queue(one)
        await asyncio.sleep(0)
        assert told == ["dear has a turn"], "its one turn took all of the time there is"
        connections.queue(c)
        await asyncio.sleep(0)
        assert told[1:] == ["a has a turn", "a is closed", "b has a turn", "c has a turn", "dear has a turn"]
        del told[:]
        connections.queue(d)
        await asyncio.sleep(0)
        assert told == ["d has a turn", "dear has a turn"], "who comes new begins where the others are, and not before"

    asyncio.run(scenario())


def test_few_requests_are_begun_before_everything_else_has_its_turn() -> None:
    """What the application does for each comes on top: with 400 at once a text waited for ten seconds."""
    connections, told, ones = some("a" * 4 * AT_ONCE)

    async def scenario() -> None:
        assert [connections.at_leisure for _ in range(2 * AT_ONCE)] == [True] * AT_ONCE + [False] * AT_ONCE
        await asyncio.sleep(0)
        for one in ones:
            connections.queue(one)
        assert not connections.at_leisure, "whoever comes now waits behind them"
        for n in (7, 15, 23):  # the one that was just refused counted, too
            await asyncio.sleep(0)
            assert len(told) == n
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(told) == 32
        assert connections.at_leisure

    asyncio.run(scenario())
