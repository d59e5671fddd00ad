"""The last errors, for who looks at a server now: when, on which route, with what status, code and id of ours.

Nothing that a client wrote is in them: no message, address, path or id of its own.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

KEPT = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    """A request that ended with an error."""

    time: float  # when it ended, by time.time()
    route: str  # a template
    status: int  # of the answer; of a stream it may be 200
    code: str
    id: str  # ours


class RecentErrors:
    """The last KEPT of one server. Older ones are forgotten: the log has them."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._errors: deque[RecentError] = deque(maxlen=KEPT)

    def add(self, *, route: str, status: int, code: str, request_id: str) -> None:
        self._errors.append(RecentError(time=self._clock(), route=route, status=status, code=code, id=request_id))

    def newest_first(self) -> list[RecentError]:
        return [*reversed(self._errors)]
