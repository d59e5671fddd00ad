"""Who is served next: clients share the time of those who serve evenly, and a client's small jobs pass its large ones.

It knows neither workers nor engine, and measures no time itself. Whoever serves several clients keeps the line of those
who wait in a FairQueue, asks it for the next one, and tells it how long each took.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic, Protocol, TypeVar


class Share(Protocol):
    """One job as far as its turn depends on it."""

    @property
    def client(self) -> str: ...

    @property
    def seconds(self) -> float:
        """That it is expected to take; what it took counts in the end."""


S = TypeVar("S", bound=Share)


@dataclass(slots=True)
class _Client:
    clock: float  # seconds that it was given, counted from when whoever had least was at 0
    jobs: int = 0  # that wait or run
    credit: float = 0.0  # seconds by which its small jobs may still pass the others


class FairQueue(Generic[S]):
    """Those who wait, the seconds that each client was given, and the choice that follows from them.

    Among clients (start-time fair queueing): whoever was given least goes next. A client is charged the expected
    seconds when its job begins, and what the job really took when it ends: a small file that decodes for long is paid
    for by whoever sent it. Who comes after a pause starts level with whoever was served last, so that nobody saves up
    time, and a debt is not forgotten by leaving.

    Within a client: half of its time goes to its smallest job, half to its oldest. So a thumbnail waits for one video
    at most, however many there are, and no stream of thumbnails keeps a video waiting for good.
    """

    def __init__(self) -> None:
        self._waiting: list[S] = []
        self._clients: dict[str, _Client] = {}
        self._now = 0.0  # the clock that a newcomer gets

    @property
    def waiting(self) -> Sequence[S]:
        """In the order in which they came."""
        return self._waiting

    def join(self, job: S) -> None:
        self._waiting.append(job)
        self._clients.setdefault(job.client, _Client(self._now)).jobs += 1

    def next(self, fits: Callable[[S], bool]) -> S | None:
        """Whose turn it is among those that fit: it waits no longer, and its client is charged. None: nobody's."""
        line = list(filter(fits, self._waiting))
        if not line:
            return None
        name = min(line, key=lambda job: self._clients[job.client].clock).client
        client = self._clients[name]
        own = [job for job in line if job.client == name]
        smallest = min(own, key=attrgetter("seconds"))
        job = own[0] if client.credit < 0 else smallest
        if job is not own[0]:
            client.credit -= job.seconds
        elif smallest.seconds < job.seconds:
            client.credit += job.seconds
        self._now = max(self._now, client.clock)
        client.clock += job.seconds
        self._waiting.remove(job)
        return job

    def leave(self, job: S) -> None:
        """It waits no longer, and was never begun."""
        self._waiting.remove(job)
        self._over(job)

    def done(self, job: S, seconds: float) -> None:
        """It took so long since it was begun: 0 for one that was not served after all."""
        self._clients[job.client].clock += seconds - job.seconds
        # All have come nearer to their next turn, or ever new clients would keep the others waiting for good.
        self._now += seconds / sum(client.jobs > 0 for client in self._clients.values())
        self._over(job)

    def _over(self, job: S) -> None:
        self._clients[job.client].jobs -= 1
        if not any(client.jobs for client in self._clients.values()):
            self._clients, self._now = {}, 0.0  # nobody waits: nobody owes anybody anything
        else:
            for name in [n for n, one in self._clients.items() if not one.jobs and one.clock <= self._now]:
                del self._clients[name]
