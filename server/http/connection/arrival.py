"""One body on its way in: how long its client may take, how many bytes of it are held, why it is taken no further."""

from collections.abc import Callable

from anyio import CancelScope
from starlette.types import Message, Receive

from configs.serve import HttpConfig
from server.http.connection.clock import Clock
from server.requests.refusal import Refusal

ARRIVAL = "arrival"  # in the state of a request's scope
LAG_SECONDS = 1.0  # how far behind the least rate a body is before others may take its place


class Arrival:
    """Bytes buy time at the least rate, never more than `receive_seconds` ahead; `body_seconds` bound it all."""

    def __init__(self, config: HttpConfig, clock: Clock, on_end: Callable[[], None] = lambda: None) -> None:
        """on_end: told when it is whole, or refused."""
        self._rate = config.receive_rate
        self._slack = config.receive_seconds
        self._clock = clock
        self._on_end = on_end
        self._ends = clock.now + config.body_seconds
        self._waiting: CancelScope | None = None  # of whoever waits for its next piece
        self.due = clock.now + self._slack  # when it is too late, if nothing more comes
        self.held = 0  # bytes that the budget counts
        self.overhead = 0  # bytes that came since somebody waits for more of it, and brought none
        self.begun = False  # something of it has come
        self.whole = False
        self.left = False  # its client has
        self.refusal: Refusal | None = None

    async def next(self, receive: Receive) -> Message:
        """Its next message. Raises its refusal, also one that comes while it is waited for."""
        if self.whole and self.refusal is None:
            return await receive()
        message: Message = {}
        if self.refusal is None:
            with CancelScope() as self._waiting:
                message = await receive()
            self._waiting = None
        if self.refusal is not None:
            raise self.refusal
        if message.get("body"):
            self.overhead, self.begun = 0, True
        if not message.get("more_body", False):
            self.end()
        return message

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for more of it."""
        return self._waiting is not None

    def took(self, nbytes: int) -> None:
        """Bytes came, of the body or of what surrounds it."""
        self.begun = True
        self.overhead += nbytes if self.wanted else 0
        self.due = min(self.due + nbytes / self._rate, self._clock.now + self._slack)

    def renew(self) -> None:
        """It is the server that does not read."""
        self.due = self._clock.now + self._slack

    def end(self) -> None:
        """It is whole."""
        self.whole = True
        self._on_end()

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
