"""All connections of one server: how many there may be, which of them gives way, and whose time is up."""

from typing import Protocol

from configs.serve import HttpConfig
from server.http.connection.clock import Clock
from server.http.connection.outbox import Unread


class Bounded(Protocol):
    """What a connection can be told."""

    def give_way(self) -> None:
        """Close: it asks for nothing, and others need its place."""

    def head_overdue(self) -> None:
        """Its head has not come in time."""

    def check_body(self) -> None:
        """See whether its body still comes."""


class Connections:
    """Whoever asks for something keeps its place. A silent connection gives way to a new one, the oldest first."""

    def __init__(self, config: HttpConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or Clock()
        self.unread = Unread(config.max_unread_bytes, config.send_seconds, self.clock)
        self.n = 0
        self._heads: dict[Bounded, float] = {}  # owe a head: by when it must be whole, in that order
        self._idle: dict[Bounded, None] = {}  # have been answered: who rests longest stands first
        self._bodies: dict[Bounded, None] = {}  # send one now

    def enter(self, one: Bounded) -> bool:
        """A new connection. False when all the others are busy and it is one too many."""
        fits = self.n < self.config.max_connections or self._make_room()
        self.n += 1
        self._heads[one] = self.clock.now + self.config.receive_seconds
        return fits

    def leave(self, one: Bounded) -> None:
        self.n -= 1
        for group in (self._heads, self._idle, self._bodies):
            group.pop(one, None)

    def spoke(self, one: Bounded) -> None:
        """Bytes came: after a rest they begin a head."""
        if one in self._idle:
            del self._idle[one]
            self._heads[one] = self.clock.now + self.config.receive_seconds

    def asked(self, one: Bounded) -> None:
        """Its head is whole, its body comes."""
        self._heads.pop(one, None)
        self._idle.pop(one, None)
        self._bodies[one] = None

    def sent(self, one: Bounded) -> None:
        """Its body is whole, or taken no further."""
        self._bodies.pop(one, None)

    def rest(self, one: Bounded) -> None:
        """It asks for nothing now."""
        self._idle[one] = None

    def tick(self) -> None:
        """To be called every clock.TICK_SECONDS."""
        self.clock.tick()
        for one in [one for one, due in self._heads.items() if due <= self.clock.now]:
            del self._heads[one]
            one.head_overdue()
        for one in list(self._bodies):
            one.check_body()
        self.unread.tick()

    def _make_room(self) -> bool:
        silent = next(iter(self._heads), None) or next(iter(self._idle), None)
        if silent is None:
            return False
        self._heads.pop(silent, None)
        self._idle.pop(silent, None)
        silent.give_way()
        return True
