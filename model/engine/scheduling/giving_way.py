"""Who comes into the batch, and who loses its seat: a client's share of seats, KV blocks and embeddings."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from model.engine.kv_blocks import BlockAllocator
from model.engine.scheduling.client_line import ClientLine
from model.engine.scheduling.fair_shares import Holdings
from model.engine.sequence import Sequence

Scarce = Literal["seats", "blocks", "embeddings"]

TURN_TOKENS = 128  # new tokens of a client's oldest answer, after which one without any seat may have its own


@dataclass(slots=True, kw_only=True)
class StepAdmission:
    """Decides for one step who comes in; whoever asks first has the first turn.

    Where there is no room for a sequence that keeps its client within its share, or is its client's first, those give
    way who have more than a share and come later: of whoever has most the youngest. Its oldest answer gives way only to
    a client that has no seat at all, and after TURN_TOKENS new ones, so that each goes on to its end, however many
    clients there are. Where that does not make room, nobody beyond its share comes in before it. And whoever was passed
    by for as many tokens as the cache holds is passed by no new request any more.
    """

    line: ClientLine
    turns: dict[int, int]  # by client, when its turn is
    running: list[Sequence]  # oldest first
    allocator: BlockAllocator
    max_running: int
    embeddings: Holdings[int]  # bytes, by client
    closed: bool = False  # no request that had no seat yet comes in any more
    _short_of: set[Scarce] = field(default_factory=set)  # what somebody within its share waits for
    _held: "_Held | None" = None  # None: not counted since somebody came or went

    def room_for(self, client: int, needs: dict[Scarce, int], shared: Collection[int]) -> list[Sequence] | None:
        """Who gives way so that a sequence of `client` has what it `needs`; None where it waits.

        shared: blocks that it takes over. Those of them that others hold are not among its needs.
        """
        lacks = self._lacks(needs)
        n = len(self.turns)
        if n == 1 or not (lacks or self._short_of):
            return None if lacks else []
        if self._held is None:
            self._held = self._count()
        held = self._held.of
        beyond = {name for name in needs if needs[name] and not held[name].within(client, needs[name], n)}
        if not lacks:
            return None if self._short_of & beyond else []
        if not beyond or not held["seats"][client]:
            victims = self._victims(client, needs, frozenset(shared))
            if victims:
                return victims
            self._short_of |= lacks
        if self.line.clocks.lag(client) > self.allocator.n_blocks * self.allocator.block_size:
            self.closed = True
        return None

    def changed(self) -> None:
        """Somebody came into the batch, or lost its seat."""
        self._held = None

    def _lacks(self, needs: dict[Scarce, int]) -> set[Scarce]:
        lacks: set[Scarce] = set()
        if len(self.running) + needs["seats"] > self.max_running:
            lacks.add("seats")
        # One block to grow for each that runs: an admission that is preempted at once is wasted work.
        if needs["blocks"] + len(self.running) > self.allocator.n_free:
            lacks.add("blocks")
        if not self.embeddings.room(needs["embeddings"]):
            lacks.add("embeddings")
        return lacks

    def _count(self) -> "_Held":
        seats, blocks = Holdings[int](self.max_running), Holdings[int](self.allocator.n_blocks)
        by_client = _by_client(self.running)
        for client, sequences in by_client.items():
            seats.take(client, len(sequences))
            blocks.take(client, _n_blocks(sequences))
        n = len(self.turns)
        beyond = dict.fromkeys([*blocks.beyond(n), *seats.beyond(n)])
        greedy = [sequence for client in beyond for sequence in by_client[client][:0:-1]]
        oldest = [of_client[0] for of_client in by_client.values()]
        oldest = [sequence for sequence in oldest if sequence.n_tokens - sequence.n_admitted >= TURN_TOKENS]
        oldest.sort(key=lambda sequence: sequence.n_admitted - sequence.n_tokens)
        return _Held({"seats": seats, "blocks": blocks, "embeddings": self.embeddings}, greedy, oldest)

    def _victims(self, client: int, needs: dict[Scarce, int], shared: Collection[int]) -> list[Sequence]:
        """The fewest without whom there is room, of clients whose turn comes later; none where that is not enough."""
        assert self._held is not None
        if not self.embeddings.room(needs["embeddings"]):  # they stay with a preempted sequence
            return []
        victims: list[Sequence] = []
        for sequence in [*self._held.greedy, *(() if self._held.of["seats"][client] else self._held.oldest)]:
            if self.turns[sequence.client] <= self.turns[client]:
                continue
            victims.append(sequence)
            left = len(self.running) - len(victims)
            free = self.allocator.n_free + self.allocator.held_only_by([one.block_table for one in victims], shared)
            if left + needs["seats"] <= self.max_running and needs["blocks"] + left <= free:
                return victims
        return []


class _Held(NamedTuple):
    of: dict[Scarce, Holdings[int]]
    greedy: list[Sequence]  # of who has more than a share, most first: all but the oldest, youngest first
    oldest: list[Sequence]  # of each client, where it has had a turn: the longest turn first


def _by_client(running: Iterable[Sequence]) -> dict[int, list[Sequence]]:
    found: dict[int, list[Sequence]] = {}
    for sequence in running:
        found.setdefault(sequence.client, []).append(sequence)
    return found


def _n_blocks(sequences: Iterable[Sequence]) -> int:
    """Each once, whoever shares it."""
    return len({block for sequence in sequences for block in sequence.block_table})


def victim_of_growth(running: list[Sequence]) -> Sequence:
    """Who is preempted when a running sequence finds no block to grow into.

    The youngest of whoever holds most blocks, but no client's oldest as long as there are others; then the youngest of
    all. So the oldest of all is never preempted. running: oldest first.
    """
    several = [sequences for sequences in _by_client(running).values() if len(sequences) > 1]
    return max(several, key=_n_blocks)[-1] if several else running[-1]
