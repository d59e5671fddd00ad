"""The last errors, for who looks at a server now: when, on which route, with what status, code and id of ours.

Nothing that a client wrote is in them: no message, address, path or id of its own.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

KEPT = 50
KEPT_UNAUTHORIZED = 10  # of these: a client without a key can cause any number of them


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    """A request that ended with an error."""

    time: float  # when it ended, by time.time()
    route: str  # a template
    status: int  # of the answer; of a stream it may be 200
    code: str
    id: str  # ours


class RecentErrors:
    """The last KEPT of one server, few of them of unauthorized requests. Older ones are forgotten: the log has them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._errors: deque[RecentError] = deque(maxlen=KEPT)
        self._unauthorized: deque[RecentError] = deque(maxlen=KEPT_UNAUTHORIZED)

    def add(self, *, route: str, status: int, code: str, request_id: str, authorized: bool) -> None:
        """authorized: as RequestContext has it."""
        kept = self._errors if authorized else self._unauthorized
        kept.append(RecentError(time=self._clock(), route=route, status=status, code=code, id=request_id))

    def newest_first(self) -> list[RecentError]:
        both = sorted([*self._errors, *self._unauthorized], key=lambda error: error.time)
        return both[: -KEPT - 1 : -1]
