"""Shares of what is scarce: who is served next, and who gives way, when several clients want more than there is.

One rule for places, workers, shared memory and the engine, each of which keeps its own books here, without clock or
I/O. Of what is used up (seconds of a worker, tokens of the model) whoever was given least goes next: ServiceClocks, and
FairQueue for a line of jobs. Of what is held (places, bytes of memory and of bodies, seats, blocks) a client's share is
the whole divided by the clients that are there: one that is alone may have everything, and whoever has more than its
share gives way to one that stays within its own: Holdings.
"""

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter
from typing import Generic, Protocol, TypeVar

C = TypeVar("C", bound=Hashable)


class ServiceClocks(Generic[C]):
    """How much each client was given: start-time fair queueing (Goyal, Vin and Cheng, 1996).

    Who comes, or comes back, is level with whoever was served last, so that nobody saves up time, and what was used
    while nobody else wanted it is no debt. A debt is not forgotten by leaving.
    """

    def __init__(self) -> None:
        self._clocks: dict[C, float] = {}
        self._jobs: dict[C, int] = {}  # that wait or run, of the clients that are here
        self._now = 0.0  # the clock that a newcomer gets

    def __len__(self) -> int:
        """Clients that are here."""
        return len(self._jobs)

    def turns(self) -> list[C]:
        """Whoever is here, and was given least, first; the newest one among equals."""
        return sorted(reversed(self._jobs), key=self._clocks.__getitem__)

    def __contains__(self, client: C) -> bool:
        return client in self._jobs

    def __getitem__(self, client: C) -> float:
        return self._clocks[client]

    def lag(self, client: C) -> float:
        """By how much less it was given than a newcomer counts as given."""
        return self._now - self._clocks[client]

    def enter(self, client: C, *, waits: bool = False) -> None:
        """A job of its came. `waits`: others of its wait already, so that it keeps the turn that it has waited for."""
        clock = self._clocks.get(client, self._now)
        self._clocks[client] = clock if waits else max(clock, self._now)
        self._jobs[client] = self._jobs.get(client, 0) + 1

    def begin(self, client: C, amount: float) -> None:
        """It is served now, and charged what that is expected to take."""
        self._now = max(self._now, self._clocks[client])
        self._clocks[client] += amount

    def end(self, client: C, amount: float, expected: float = 0.0) -> None:
        """It was given `amount` for what it was charged `expected`."""
        self._clocks[client] += amount - expected
        # All have come nearer to their next turn, or ever new clients would keep the others waiting for good.
        self._now += amount / len(self._jobs)

    def leave(self, client: C) -> bool:
        """One of its jobs is over. Whether that was its last one here."""
        self._jobs[client] -= 1
        if not self._jobs[client]:
            del self._jobs[client]
        if not self._jobs:
            self._clocks, self._now = {}, 0.0  # nobody waits: nobody owes anybody anything
        elif client not in self._jobs:
            for name in [n for n, clock in self._clocks.items() if n not in self._jobs and clock <= self._now]:
                del self._clocks[name]
        return client not in self._jobs


class Holdings(Generic[C]):
    """What each client holds of something of which there is `capacity`."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity
        self.total = 0.0
        self._held: dict[C, float] = {}

    def __getitem__(self, client: C) -> float:
        return self._held.get(client, 0.0)

    def take(self, client: C, n: float) -> None:
        self.total += n
        self._held[client] = self[client] + n

    def give(self, client: C, n: float) -> None:
        """It has so much less. Who has nothing is not there."""
        self.total -= n
        left = self[client] - n
        self._held.pop(client, None)
        if left:
            self._held[client] = left

    def room(self, n: float) -> bool:
        return self.total + n <= self.capacity

    def n_clients(self, client: C) -> int:
        """That hold something, with `client`, whether or not it does."""
        return len(self._held) + (client not in self._held)

    def within(self, client: C, n: float, n_clients: int = 0) -> bool:
        """Whether it stays within its share with `n` more: of those who hold some, or of `n_clients`."""
        return self[client] + n <= self.capacity / max(n_clients, self.n_clients(client))

    def beyond(self, n_clients: int) -> list[C]:
        """Who holds more than the share of each of so many, whoever holds most first: they give way."""
        share = self.capacity / n_clients
        return sorted((c for c, held in self._held.items() if held > share), key=self.__getitem__, reverse=True)


class Share(Protocol):
    """One job as far as its turn depends on it."""

    @property
    def client(self) -> str: ...

    @property
    def expected(self) -> float:
        """Seconds or tokens that it is expected to take; what it took counts in the end."""


S = TypeVar("S", bound=Share)


class FairQueue(Generic[S]):
    """A line of jobs: among clients by their ServiceClocks, in whatever unit jobs are counted.

    Within a client half of its time goes to its smallest job, half to its oldest: a thumbnail waits for one video at
    most, however many there are, and no stream of thumbnails keeps a video waiting for good. Without `small_first` its
    jobs go in the order in which they came.
    """

    def __init__(self, *, small_first: bool = True) -> None:
        self._small_first = small_first
        self._waiting: list[S] = []
        self._clocks: ServiceClocks[str] = ServiceClocks()
        self._credit: dict[str, float] = {}  # by which a client's small jobs may still pass its others

    @property
    def waiting(self) -> Sequence[S]:
        """In the order in which they came."""
        return self._waiting

    def join(self, job: S) -> None:
        self._clocks.enter(job.client, waits=any(other.client == job.client for other in self._waiting))
        self._waiting.append(job)

    def turn(self, fits: Callable[[S], bool]) -> S | None:
        """The oldest of those that fit of the client whose turn it is; None: nobody's."""
        return min(filter(fits, self._waiting), key=lambda job: self._clocks[job.client], default=None)

    def next(self, fits: Callable[[S], bool]) -> S | None:
        """That one or the smallest: it waits no longer, and its client is charged what it is expected to take."""
        oldest = self.turn(fits)
        if oldest is None:
            return None
        own = [one for one in self._waiting if one.client == oldest.client and fits(one)]
        smallest = min(own, key=attrgetter("expected"))
        job = smallest if self._small_first and self._credit.get(oldest.client, 0.0) >= 0 else oldest
        passes, passed = job is not oldest, smallest.expected < job.expected
        credit = -job.expected if passes else job.expected if passed else 0.0
        self._credit[job.client] = self._credit.get(job.client, 0.0) + credit
        self._clocks.begin(job.client, job.expected)
        self._waiting.remove(job)
        return job

    def done(self, job: S, took: float | None) -> None:
        """It took so much since it was begun: 0 for one that was not served after all; None: it has only waited."""
        if took is None:
            self._waiting.remove(job)
        else:
            self._clocks.end(job.client, took, job.expected)
        if self._clocks.leave(job.client):
            self._credit.pop(job.client, None)
