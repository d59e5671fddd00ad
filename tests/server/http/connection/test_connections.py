"""Who gives way when there are too many, and whose time is up: the oldest first."""

from configs.serve import HttpConfig
from server.http.connection.connections import Connections


class One:
    """A connection that notes what it is told."""

    def __init__(self, told: list[str], name: str) -> None:
        self.told, self.name = told, name

    def give_way(self) -> None:
        self.told.append(f"{self.name} gives way")

    def head_overdue(self) -> None:
        self.told.append(f"{self.name} is overdue")

    def check_body(self) -> None:
        self.told.append(f"{self.name} sends")


def some(names: str, **bounds: int) -> tuple[Connections, list[str], list[One]]:
    connections = Connections(HttpConfig(**bounds))  # type: ignore[arg-type]
    told: list[str] = []
    ones = [One(told, name) for name in names]
    for one in ones:
        connections.enter(one)
    return connections, told, ones


def test_silent_ones_give_way_before_resting_ones_and_busy_ones_never() -> None:
    connections, told, (a, b, c, d) = some("abcd", max_connections=4)
    for one in (a, b):
        connections.asked(one)
        connections.sent(one)
    connections.rest(a)
    late = [One(told, name) for name in "efghi"]
    for one in late[:2]:
        assert connections.enter(one)
        connections.asked(one)
    assert told == ["c gives way", "d gives way"]
    assert connections.enter(late[2]) and told[-1] == "a gives way"
    connections.asked(late[2])
    assert not connections.enter(late[3]), "all are busy"
    assert connections.enter(late[4]) and told[-1] == "h gives way", "the one too many has asked for nothing yet"
    for one in (c, d, a):
        connections.leave(one)
    assert connections.n == 6


def test_a_head_has_its_time_from_the_first_byte_after_a_rest() -> None:
    connections, told, (a, b) = some("ab", receive_seconds=30)
    connections.clock.now = 20
    connections.asked(a)
    connections.sent(a)
    connections.rest(a)
    connections.clock.now = 30
    connections.spoke(b)
    connections.tick()
    assert told == ["b is overdue"]
    connections.clock.now = 100
    connections.spoke(a)
    connections.clock.now = 129
    connections.spoke(a)
    connections.tick()
    assert told == ["b is overdue"]
    connections.clock.now = 130
    connections.tick()
    connections.tick()
    assert told == ["b is overdue", "a is overdue"]


def test_bodies_are_looked_at_while_they_come() -> None:
    connections, told, (a, b) = some("ab")
    connections.asked(a)
    connections.tick()
    connections.sent(a)
    connections.asked(b)
    connections.leave(b)
    connections.tick()
    assert told == ["a sends"]
