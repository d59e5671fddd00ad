"""What happened lately, for an operator who looks at a server now: the last errors, and the slowest requests.

Nothing that a client wrote is in them: no message, address, path or id of its own.
"""

import heapq
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

KEPT = 50
KEPT_UNAUTHORIZED = 10  # of these: a client without a key can cause any number of them
SLOWEST = 10  # requests that are shown
SLOW_MINUTES = 5  # how far back they reach, the minute that runs included


@dataclass(frozen=True, slots=True, kw_only=True)
class RecentError:
    """Requests that ended with the same error on the same route; time and id are those of the latest."""

    time: float  # when it ended, by time.time()
    route: str  # a template
    status: int  # of the answer; of a stream it may be 200
    code: str
    id: str  # ours
    count: int  # how many there were since the first of them


ErrorKind = tuple[str, int, str]  # route, status, code


class RecentErrors:
    """The last KEPT kinds of errors of one server, few of them of unauthorized requests.

    A kind is a route with a status and a code: one client that repeats its error hides no other. Older kinds are
    forgotten: the log has them.
    """

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._errors: OrderedDict[ErrorKind, RecentError] = OrderedDict()  # the latest stands last
        self._unauthorized: OrderedDict[ErrorKind, RecentError] = OrderedDict()

    def add(self, *, route: str, status: int, code: str, request_id: str, authorized: bool) -> None:
        """authorized: as RequestContext has it."""
        kept, most = (self._errors, KEPT) if authorized else (self._unauthorized, KEPT_UNAUTHORIZED)
        before = kept.pop((route, status, code), None)
        kept[route, status, code] = RecentError(
            time=self._clock(), route=route, status=status, code=code, id=request_id,
            count=1 + (0 if before is None else before.count),
        )  # fmt: skip
        if len(kept) > most:
            kept.popitem(last=False)

    def newest_first(self) -> list[RecentError]:
        both = sorted([*self._errors.values(), *self._unauthorized.values()], key=lambda error: error.time)
        return both[: -KEPT - 1 : -1]


class StagesOver(Protocol):
    """Of one request to the model."""

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of those that are over."""


class Counted(Protocol):
    """An HTTP request that is over, as far as it is shown."""

    id: str  # ours
    status: int  # of the answer
    prompt_tokens: int
    cached_tokens: int
    media_tokens: int
    generation_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRequest:
    """A request for an answer, however it ended."""

    time: float  # when it ended, by time.time()
    route: str  # a template
    status: int  # of the answer
    id: str  # ours
    seconds: float  # from its first byte to its answer's last
    stages: Mapping[str, float]  # seconds of those that it went through; names with a dot are parts of others
    prompt_tokens: int
    cached_tokens: int
    media_tokens: int
    generation_tokens: int


class SlowRequests:
    """The slowest requests of the last SLOW_MINUTES; of each minute at most SLOWEST are kept."""

    def __init__(self, clock: Callable[[], float] = time.time, ticks: Callable[[], float] = time.monotonic) -> None:
        """clock: the time of day; ticks: seconds that never go back, by which minutes are counted."""
        self._clock = clock
        self._ticks = ticks
        self._minutes: dict[int, list[tuple[float, int, SlowRequest]]] = {}  # of each a heap, the quickest in front
        self._n = 0

    def add(self, seconds: float, route: str, request: Counted, timings: StagesOver) -> None:
        minute = int(self._ticks() // 60)
        kept = self._minutes.get(minute)
        if kept is None:
            for old in [*self._minutes]:
                if old <= minute - SLOW_MINUTES:
                    del self._minutes[old]
            kept = self._minutes[minute] = []
        if len(kept) == SLOWEST:
            if seconds <= kept[0][0]:
                return
            heapq.heappop(kept)
        self._n += 1  # of two that took as long the records are not compared
        found = SlowRequest(
            time=self._clock(), route=route, status=request.status, id=request.id, seconds=seconds,
            stages=timings.stages, prompt_tokens=request.prompt_tokens, cached_tokens=request.cached_tokens,
            media_tokens=request.media_tokens, generation_tokens=request.generation_tokens,
        )  # fmt: skip
        heapq.heappush(kept, (seconds, self._n, found))

    def slowest_first(self) -> list[SlowRequest]:
        since = int(self._ticks() // 60) - SLOW_MINUTES
        all_kept = [one for minute, kept in self._minutes.items() if minute > since for one in kept]
        return [one for _, _, one in sorted(all_kept, reverse=True)[:SLOWEST]]
