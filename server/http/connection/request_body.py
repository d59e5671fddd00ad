"""The bodies of requests on their way in: how long a client may take, how many bytes are held, and who gives way."""

import asyncio
from collections import Counter
from collections.abc import Callable

from starlette.types import Message, Receive

from configs.serve import HttpConfig
from server.http.connection.send_buffer import Clock
from server.requests.refusal import Refusal, body_too_large, overloaded

LAG_SECONDS = 1.0  # how far behind the least rate a body is before others may take its place


class BodyBudget:
    """Bytes of request bodies that the server holds now, of all requests together.

    Where there is no room, the body that lags most behind the least rate gives way: whoever stops sending holds
    nothing against those who send.
    """

    def __init__(self, config: HttpConfig, clock: Clock) -> None:
        self.config = config
        self.clock = clock
        self.held = 0
        self.fetched: Counter[str] = Counter()  # of these, bytes that came by URL, by client
        self.bodies: dict[RequestBody, None] = {}  # of which something is held

    def take(self, body: "RequestBody", nbytes: int) -> bool:
        """Count `nbytes` more of `body`; False, and nothing counted, when they do not fit."""
        while self.held + nbytes > self.config.max_inflight_bytes:
            laggards = [one for one in self.bodies if one.lags() and one is not body]
            if not laggards:
                return False
            slowest = min(laggards, key=lambda one: one.due)
            slowest.keep(0)
            slowest.refuse(overloaded("others need the room of this request's body, which came slowly", "bodies_full"))
        self.held += nbytes
        body.held += nbytes
        self.bodies[body] = None
        return True

    def take_fetched(self, body: "RequestBody", nbytes: int) -> bool:
        """The same of what was fetched for it: of one client at most as much as is left then for all others."""
        left = self.config.max_inflight_bytes - self.held - nbytes
        if (body.client and self.fetched[body.client] + nbytes > left) or not self.take(body, nbytes):
            return False
        self.fetched[body.client] += nbytes
        body.fetched += nbytes
        return True

    def give_fetched(self, body: "RequestBody") -> None:
        self.fetched[body.client] -= body.fetched
        body.fetched = 0
        if not self.fetched[body.client]:
            del self.fetched[body.client]


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
        self._waiting: asyncio.Task[None] | None = None  # for its next piece
        self._n = 0  # bytes that came
        self.due = budget.clock.now + self._slack  # when it is too late, if nothing more comes
        self.held = 0  # bytes that the budget counts
        self.fetched = 0  # of these, what came by URL
        self.client = ""  # who asks, once that is known; "": nobody shares
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
        message: Message = {}
        if self.refusal is None:
            self._waiting = asyncio.current_task()
            try:
                message = await self._receive()
            except asyncio.CancelledError:
                if self.refusal is None:
                    raise
            finally:
                self._waiting = None
        if self.refusal is not None:
            raise self.refusal
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

    def keep(self, nbytes: int) -> None:
        """It was read, or nobody reads it any more: no more than so many bytes of it are held, the rest is others'."""
        kept = min(self.held, nbytes)
        self._budget.held -= self.held - kept
        self.held = kept
        if not kept:
            if self.fetched:
                self._budget.give_fetched(self)
            self._budget.bodies.pop(self, None)

    def hold(self, nbytes: int) -> bool:
        """What was fetched for it counts as it does, until it ends. False: there is no room for that now."""
        return self._budget.take_fetched(self, nbytes)

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
        """Whoever reads the body gets the refusal instead of more of it, also one that waits for more now."""
        self.refusal = refusal
        if self._waiting is not None:
            self._waiting.cancel()
        self._on_end()
