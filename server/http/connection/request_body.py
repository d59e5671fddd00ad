"""The bodies of requests on their way in: how long a client may take, how many bytes are held, and who gives way."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import Any

from starlette.types import Message, Receive

from configs.serve import HttpConfig
from model.engine.scheduling.fair_shares import Holdings
from server.http.connection.send_buffer import Clock
from server.requests.refusal import Refusal, body_too_large, gave_way, overloaded

FALL = 64 << 20  # bytes; of fewer the next bodies make use
LAG_SECONDS = 1.0  # how far behind the least rate a body is before others may take its place


class BodyBudget:
    """Bytes of request bodies, and of what was fetched for them, that the server holds now, by client.

    Where there is no room for a client within its share of the bytes, those beyond theirs give way: the body that lags
    most behind the least rate, then the latest that still comes, then the latest whose answer has not begun. Of clients
    within their shares only a body that lags does, last of all: one that stops sending holds nothing against those that
    send. A client beyond its share finds room among its own laggards alone.
    """

    def __init__(
        self, config: HttpConfig, clock: Clock, gave_way: Callable[[str], None] = lambda of: None,
        fell: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """gave_way: hears of what, whenever a body that still comes gives way; fell: of FALL fewer bytes held."""
        self.config = config
        self.clock = clock
        self.holdings: Holdings[str] = Holdings(config.max_inflight_bytes)
        self.pinned: Holdings[str] = Holdings(config.max_inflight_bytes * 7 // 8)  # of these, what cannot give way
        self.bodies: dict[RequestBody, None] = {}  # of which something is held, in the order in which they came
        self.most = 0.0  # bytes held at once since `fell`
        self.fell = fell
        self._gave_way = gave_way

    @property
    def held(self) -> int:
        """Bytes of all together."""
        return int(self.holdings.total)

    def take(self, body: "RequestBody", nbytes: int) -> bool:
        """Count `nbytes` more of `body`; False, and nothing counted, when they do not fit."""
        if not self.holdings.room(nbytes) and not self._make_room(body, nbytes):
            return False
        self.holdings.take(body.client, nbytes)
        body.held += nbytes
        self.bodies[body] = None
        self.most = max(self.most, self.holdings.total)
        return True

    def _make_room(self, body: "RequestBody", nbytes: int) -> bool:
        held, client = self.holdings, body.client
        while not held.room(nbytes):
            within = held.within(client, nbytes)
            beyond = held.beyond(held.n_clients(client)) if within else []
            if self._slowest_gives_way(body, {client, *beyond}) or any(map(self._gives_way, beyond)):
                continue
            if not within or not self._slowest_gives_way(body, {one.client for one in self.bodies}):
                return False
        return True

    def _slowest_gives_way(self, body: "RequestBody", clients: Collection[str]) -> bool:
        laggards = [one for one in self.bodies if one.lags() and one.client in clients and one is not body]
        if not laggards:
            return False
        slowest = min(laggards, key=lambda one: one.due)
        slowest.keep(0)
        slowest.refuse(overloaded("others need the room of this request's body, which came slowly", "bodies_full"))
        return True

    def _gives_way(self, client: str) -> bool:
        of_client = [one for one in reversed(self.bodies) if one.client == client]
        for body in sorted(of_client, key=attrgetter("whole")):
            if body.end_waiting is not None:
                if not body.end_waiting():  # its answer has begun
                    continue
            elif body.answered:  # without an admission, or by an error before it
                continue
            else:
                body.refuse(gave_way())
                self._gave_way("bodies")  # Admission counts those that it has let in
            body.keep(0)
            return True
        return False


class RequestBody:
    """One body. Its bytes buy time at the least rate, never more than `receive_seconds` ahead; `body_seconds` bound it.

    A larger one is a 413, one that the budget has no room for now a 429. Bytes are counted as they arrive, never by
    what Content-Length announces: a client that only announces holds nothing.
    """

    def __init__(self, receive: Receive, budget: BodyBudget, on_end: Callable[[], None], *, whole: bool) -> None:
        """receive: where it comes from; on_end: told when it is whole, or refused; whole: there is nothing of it."""
        self._receive = receive
        self._budget = budget
        self._on_end = on_end
        self._clock = budget.clock
        self._slack = budget.config.receive_seconds
        self._ends = budget.clock.now + budget.config.body_seconds
        self._waiting: asyncio.Task[Any] | None = None  # that a refusal ends
        self._cancelled = False  # it did
        self._n = 0  # bytes that came
        self.due = budget.clock.now + self._slack  # when it is too late, if nothing more comes
        self.held = 0  # bytes that the budget counts
        self.pinned = 0  # of these, what cannot give way
        self.answered = False  # an answer is being written
        self.client = ""  # who asks, once that is known; "": nobody shares
        self.end_waiting: Callable[[], bool] | None = None  # see HeldBody
        self.overhead = 0  # bytes that came since somebody waits for more of it, and brought none
        self.begun = False  # something of it has come
        self.whole = whole
        self.left = False  # its client has
        self.refusal: Refusal | None = None

    async def receive(self, *, drop: bool = False) -> Message:
        """Its next message, as ASGI has it, counted unless it is to be dropped.

        Raises Refusal: what there is no room for, and its own, also one that comes while it is waited for.
        """
        if self.whole and self.refusal is None:
            return await self._receive()
        with self.refusable():
            message: Message = await self._receive()
        nbytes, most = len(message.get("body", b"")), self._budget.config.max_body_bytes
        if nbytes:
            self.overhead, self.begun = 0, True
        if not message.get("more_body", False):
            self.whole = True
            self._on_end()
        if nbytes and not drop:
            self._n += nbytes
            if self._n > most:
                raise body_too_large(most)
            if not self._budget.take(self, nbytes):
                raise overloaded("too many request bodies are being read", "bodies_full")
        return message

    @contextmanager
    def refusable(self) -> Iterator[None]:
        """Raises its refusal, also one that comes while the running task waits in the block."""
        if self.refusal is not None:
            raise self.refusal
        task = asyncio.current_task()
        assert task is not None
        before, self._waiting = self._waiting, task
        try:
            yield
        except asyncio.CancelledError:
            # Two may cancel it: from 3.11 on a task counts them.
            if not self._cancelled or (hasattr(task, "uncancel") and task.uncancel() > 0):
                raise
        finally:
            self._waiting = before
        if self.refusal is not None:
            raise self.refusal

    def keep(self, nbytes: int) -> None:
        """It was read, or nobody reads it any more: no more than so many bytes of it are held, the rest is others'."""
        kept = min(self.held, nbytes)
        if kept < self.held:
            self._budget.holdings.give(self.client, self.held - kept)
            self.held = kept
        if kept < self.pinned:
            self._budget.pinned.give(self.client, self.pinned - kept)
            self.pinned = kept
        if not kept:
            self._budget.bodies.pop(self, None)
        if self._budget.most - self._budget.holdings.total >= FALL:
            self._budget.most = self._budget.holdings.total
            self._budget.fell()

    def hold(self, nbytes: int) -> bool:
        """What was fetched for it counts as it does. False: there is no room for so many bytes now."""
        return self._budget.take(self, nbytes)

    def pin(self, nbytes: int) -> bool:
        """So much of it stays until its answer ends, and cannot give way once that has begun.

        False: of one client at most as much is pinned as is left then for all others, and of all seven eighths.
        """
        pinned, more = self._budget.pinned, nbytes - self.pinned
        most = pinned.capacity - (more + pinned[self.client] if self.client else 0)
        if more > 0 and pinned.total + more > most:
            return False
        pinned.take(self.client, more)
        self.pinned = nbytes
        return True

    def took(self, nbytes: int) -> None:
        """Bytes came, of the body or of what surrounds it."""
        self.begun = True
        self.overhead += nbytes if self._waiting is not None else 0
        self.due = min(self.due + nbytes / self._budget.config.receive_rate, self._clock.now + self._slack)

    def renew(self) -> None:
        """It is the server that does not read."""
        self.due = self._clock.now + self._slack

    @property
    def overdue(self) -> bool:
        return self._clock.now >= min(self.due, self._ends)

    def lags(self, seconds: float = LAG_SECONDS) -> bool:
        """Whether it came slower than it must, lately, and is so many seconds behind."""
        return not self.whole and self.due < self._clock.now + self._slack - min(seconds, self._slack / 2)

    def refuse(self, refusal: Refusal) -> None:
        """What reads the body gets the refusal instead of more of it, or of the rest of the block in which it waits."""
        self.refusal = refusal
        if self._waiting is not None:
            self._cancelled = True
            self._waiting.cancel()
        self._on_end()
