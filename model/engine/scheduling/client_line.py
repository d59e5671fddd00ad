"""Those who wait for a seat in the batch: a queue for each client, and whose turn it is."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping

from model.engine.scheduling.fair_shares import ServiceClocks
from model.engine.sequence import Sequence


class ClientLine:
    """Within a client first come, first served; among clients whoever was given fewest tokens of the model goes first.

    Counted are tokens that were computed for the first time: what a preemption makes the model compute again is not
    its client's doing.
    """

    def __init__(self) -> None:
        self.clocks: ServiceClocks[int] = ServiceClocks()  # of clients that wait or run: whoever ends leaves them
        self._queues: dict[int, deque[Sequence]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def __iter__(self) -> Iterator[Sequence]:
        for queue in self._queues.values():
            yield from queue

    def add(self, sequences: Iterable[Sequence]) -> None:
        """Queue new ones behind the others of their client."""
        for sequence in sequences:
            queue = self._queues.setdefault(sequence.client, deque())
            self.clocks.enter(sequence.client, waits=bool(queue))
            queue.append(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Queue a preempted one before the others of its client."""
        self._queues.setdefault(sequence.client, deque()).appendleft(sequence)

    def take(self, sequence: Sequence) -> None:
        """Take one out of the queue."""
        queue = self._queues[sequence.client]
        queue.remove(sequence)
        if not queue:
            del self._queues[sequence.client]

    def head(self, client: int) -> Sequence | None:
        return self._queues[client][0] if client in self._queues else None

    def charge(self, given: Mapping[int, int]) -> None:
        """A step computed so many tokens for these clients."""
        for client in given:
            self.clocks.begin(client, 0.0)
        for client, n in given.items():
            self.clocks.end(client, n)
