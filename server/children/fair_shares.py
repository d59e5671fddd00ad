"""Who is served next: clients share the workers' time evenly, and a client's small jobs pass its large ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from tokenization.messages import Lane


@dataclass(slots=True, kw_only=True, eq=False)
class Ticket:
    """One job on its way through the workers."""

    client: str
    seconds: float  # that it is expected to take; what it took counts in the end
    lane: Lane = "media"  # "text", "picture": the worker of such may take it, and so may any other
    charged: bool = False  # its client has paid for it in advance


@dataclass(slots=True)
class _Client:
    clock: float  # seconds that it was given, counted from when whoever had least was at 0
    jobs: int = 0  # that wait or run
    credit: float = 0.0  # seconds by which its small jobs may still pass the others


class FairShares:
    """The seconds that each client was given, and the choice that follows from them. It measures no time itself.

    Among clients (start-time fair queueing): whoever was given least goes next. A client is charged the expected
    seconds when its job begins, and what the job really took when it ends: a small file that decodes for long is paid
    for by whoever sent it. Who comes after a pause starts level with whoever was served last, so that nobody saves up
    time, and a debt is not forgotten by leaving.

    Within a client: half of its time goes to its smallest job, half to its oldest. So a thumbnail waits for one video
    at most, however many there are, and no stream of thumbnails keeps a video waiting for good.
    """

    def __init__(self) -> None:
        self._clients: dict[str, _Client] = {}
        self._now = 0.0  # the clock that a newcomer gets

    def arrive(self, ticket: Ticket) -> None:
        ticket.charged = False
        self._clients.setdefault(ticket.client, _Client(self._now)).jobs += 1

    def pick(self, waiting: Sequence[Ticket]) -> Ticket | None:
        """Which of those who wait, in the order in which they came, is to be begun; None where nobody waits."""
        if not waiting:
            return None
        name = min((ticket.client for ticket in waiting), key=lambda name: self._clients[name].clock)
        own = [ticket for ticket in waiting if ticket.client == name]
        return own[0] if self._clients[name].credit < 0 else min(own, key=lambda ticket: ticket.seconds)

    def begin(self, ticket: Ticket, waiting: Sequence[Ticket]) -> None:
        """It was picked among `waiting`, and a worker takes it."""
        client = self._clients[ticket.client]
        own = [other for other in waiting if other.client == ticket.client]
        if own[0] is not ticket:
            client.credit -= ticket.seconds
        elif any(other.seconds < ticket.seconds for other in own):
            client.credit += ticket.seconds
        ticket.charged = True
        self._now = max(self._now, client.clock)
        client.clock += ticket.seconds

    def end(self, ticket: Ticket, seconds: float) -> None:
        """It took so long: 0 for one that never had a worker."""
        client = self._clients[ticket.client]
        if ticket.charged:
            client.clock += seconds - ticket.seconds
            # All have come nearer to their next turn, or ever new clients would keep the others waiting for good.
            self._now += seconds / sum(client.jobs > 0 for client in self._clients.values())
        client.jobs -= 1
        if not any(client.jobs for client in self._clients.values()):
            self._clients, self._now = {}, 0.0  # nobody waited: nobody owes anybody anything
        else:
            for name in [n for n, one in self._clients.items() if not one.jobs and one.clock <= self._now]:
                del self._clients[name]
