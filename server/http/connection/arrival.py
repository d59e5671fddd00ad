"""One body on its way in: how long its client may take, how many bytes of it are held, why it is taken no further."""

from collections.abc import Callable

from configs.serve import HttpConfig
from server.http.connection.clock import Clock
from server.requests.refusal import Refusal

ARRIVAL = "arrival"  # in the state of a request's scope
LAG_SECONDS = 1.0  # how far behind the least rate a body is before others may take its place


class Arrival:
    """Bytes buy time at the least rate, never more than `receive_seconds` ahead; `body_seconds` bound it all."""

    def __init__(self, config: HttpConfig, clock: Clock, on_refused: Callable[[], None] = lambda: None) -> None:
        self._rate = config.receive_rate
        self._slack = config.receive_seconds
        self._clock = clock
        self._on_refused = on_refused
        self._ends = clock.now + config.body_seconds
        self.due = clock.now + self._slack  # when it is too late, if nothing more comes
        self.held = 0  # bytes that the budget counts
        self.whole = False
        self.refusal: Refusal | None = None  # for whoever reads it

    def took(self, nbytes: int) -> None:
        self.due = min(self.due + nbytes / self._rate, self._clock.now + self._slack)

    def renew(self) -> None:
        """It is the server that does not read."""
        self.due = self._clock.now + self._slack

    @property
    def overdue(self) -> bool:
        return self._clock.now >= min(self.due, self._ends)

    @property
    def lags(self) -> bool:
        """Whether it came slower than it must, lately."""
        return not self.whole and self.due < self._clock.now + self._slack - min(LAG_SECONDS, self._slack / 2)

    def refuse(self, refusal: Refusal) -> None:
        """Whoever reads the body gets the refusal instead of more of it."""
        self.refusal = refusal
        self._on_refused()
