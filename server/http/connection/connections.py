"""All connections of one server: how many there may be, which gives way, whose time is up, and whose turn it is."""

import asyncio
import heapq
import logging
import time
from collections.abc import Callable
from itertools import islice
from typing import Any, Literal, Protocol

from configs.serve import HttpConfig
from server.http.connection.request_body import LAG_SECONDS, RequestBody
from server.http.connection.send_buffer import TICK_SECONDS, Clock, SendBuffer, Unread

log = logging.getLogger("pixelferry.http")

READ = 1 << 16  # bytes read at once from one connection
LEAST_READ = 1 << 12  # the same where much of others is read and not parsed yet
MOST_UNPARSED = 1 << 26  # bytes of all connections that are much
TURN_SECONDS = 0.005  # of parsing, before everything else has its turn again
AT_ONCE = 8  # pieces that are parsed before that, too: each may be a request that the application begins to answer
REST_SECONDS = 30.0  # how long a connection is kept that asks for nothing
MADE_ROOM = 64  # connections that give way at once, so that looking for them is rare

# What a connection does: it owes a head, or the end of its connection, of which nothing more is read or written; its
# body comes; its request is whole, and answered; it has taken its answer, and asks for nothing.
State = Literal["head", "body", "answer", "rest"]


class Guarded(Protocol):
    """What a connection is told by all connections of its server."""

    spent: float  # seconds that parsing it took, as those count
    state: State

    def abort(self) -> None: ...
    def give_way(self) -> None: ...
    def rested(self) -> None: ...
    def head_overdue(self) -> None: ...
    def check_body(self) -> None: ...
    def turn(self) -> None: ...


class Connections:
    """Whoever asks for something keeps its place. A silent connection gives way to a new one, the oldest first; bodies
    that lag, those furthest behind first, or have not begun; whoever has come this moment; whoever rests longest.

    What all have read and not parsed is parsed in turns, by start-time fair queueing: whose pieces took the least time
    so far comes first, and whoever comes new begins where the others are.
    """

    def __init__(self, config: HttpConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.clock = clock or Clock()
        self.unread = Unread(config.max_unread_bytes, config.send_seconds, self.clock)
        self.n = 0
        self.unparsed = 0  # bytes that were read and not parsed
        self.memory = memoryview(bytearray(READ))  # that all are read to, since bytes are taken out at once
        self._heads: dict[Guarded, float] = {}  # owe a head, or the end of theirs: by when, in that order
        self._idle: dict[Guarded, float] = {}  # have been answered: until when they may rest, in that order
        self._bodies: dict[Guarded, RequestBody] = {}  # send one now
        self._groups: dict[State, dict[Guarded, Any]] = {"head": self._heads, "body": self._bodies, "rest": self._idle}
        self._seconds: dict[State, float] = {"head": config.receive_seconds, "rest": REST_SECONDS}
        self._evicted: set[Guarded] = set()  # have been told to give way, and are not gone yet
        self._queued: list[Guarded] = []  # since turns were last given
        self._turns: list[tuple[float, int, Guarded]] = []  # a heap of those before: `spent`, number, connection
        self._n_turns = 0
        self._now = 0.0  # where the last turn began, in these seconds
        self._running = False
        self._n_at_once = 0  # pieces that were parsed since everything else had its turn

    def enter(self, one: Guarded) -> bool:
        """A new connection. False when all the others are busy and it is one too many."""
        most = self.config.max_connections
        leave = min(len(self._evicted), MADE_ROOM - 1)
        fits = self.n - leave < most or self._make_room()
        self.n += 1
        self.becomes(one, "head")
        return fits

    def leave(self, one: Guarded) -> None:
        self.n -= 1
        self._evicted.discard(one)
        self.becomes(one, "answer")

    @property
    def n_sending(self) -> int:
        """Connections whose request's body is still on its way."""
        return len(self._bodies)

    def becomes(self, one: Guarded, state: State, body: RequestBody | None = None) -> None:
        """What a connection does from now on, as of now; the body that comes, where one does."""
        if one.state != "answer":
            self._groups[one.state].pop(one, None)
        one.state = state
        if state != "answer":
            self._groups[state][one] = body or self.clock.now + self._seconds[state]

    async def keep_time(self) -> None:
        """Never returns."""
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self.tick()

    def tick(self) -> None:
        """To be called every TICK_SECONDS. What goes wrong with one connection ends that one alone."""
        self.clock.tick()
        for group in (self._heads, self._idle):
            while group and group[one := next(iter(group))] <= self.clock.now:
                overdue = one.head_overdue if group is self._heads else one.rested
                self.becomes(one, "answer")  # it waits there no longer
                alone(one, overdue)
        for one in list(self._bodies):
            alone(one, one.check_body)
        for unread, due in list(self.unread.due.items()):
            if due <= self.clock.now:
                alone(unread, unread.check)

    # ---- what is parsed in turns

    @property
    def at_leisure(self) -> bool:
        """Whether one more piece may be parsed where it came in, without a turn."""
        self._n_at_once += 1
        self._run()
        return self._n_at_once <= AT_ONCE and not self._turns and not self._queued

    def queue(self, one: Guarded) -> None:
        """One turn, when it is this connection's."""
        self._queued.append(one)
        self._run()

    def _run(self) -> None:
        if not self._running:
            self._running = True
            asyncio.get_running_loop().call_soon(self._run_turns)

    def _run_turns(self) -> None:
        """Those that wait now, once each, for as long as the loop may be held."""
        for one in self._queued:
            self._n_turns += 1
            heapq.heappush(self._turns, (max(self._now, one.spent), self._n_turns, one))
        self._queued.clear()
        begun = ended = time.perf_counter()
        while self._turns and ended - begun < TURN_SECONDS and self._n_at_once < AT_ONCE:
            self._n_at_once += 1
            self._now, _, one = heapq.heappop(self._turns)
            alone(one, one.turn)
            started, ended = ended, time.perf_counter()
            one.spent = self._now + ended - started
        self._n_at_once = 0
        self._running = bool(self._turns or self._queued)
        if self._running:
            asyncio.get_running_loop().call_soon(self._run_turns)

    def _make_room(self) -> bool:
        silent, fresh = [*islice(self._heads, 1)], self.clock.now + self.config.receive_seconds - LAG_SECONDS
        old = silent if silent and self._heads[silent[0]] <= fresh else []  # it is no newcomer whose head is on its way
        gives_way = old or self._lagging() or self._stalled() or silent or [*islice(self._idle, 1)]
        for one in gives_way:
            self.becomes(one, "answer")
            self._evicted.add(one)
            alone(one, one.give_way)
        return bool(gives_way)

    def _lagging(self) -> list[Guarded]:
        """Those whose bodies are behind, the furthest first."""
        found = [(body.due, i, one) for i, (one, body) in enumerate(self._bodies.items()) if body.lags(0.0)]
        return [one for _, _, one in heapq.nsmallest(MADE_ROOM, found)]

    def _stalled(self) -> list[Guarded]:
        """Of the bodies whose heads came first one of which nothing has come, however short a time ago."""
        return [one for one, body in islice(self._bodies.items(), MADE_ROOM) if not body.begun][:1]


def alone(one: Guarded | SendBuffer, act: Callable[[], None]) -> None:
    """What goes wrong with one connection is that connection's alone: it is logged, and the connection closed."""
    try:
        act()
    except Exception:  # noqa: BLE001 - a defect of ours, whichever it is, must not reach the other connections
        log.exception("a connection failed and is closed")
        one.abort()
