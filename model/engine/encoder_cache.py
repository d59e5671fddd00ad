"""Which embeddings are reserved, made, on the device and kept, by content. It holds no tensors."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import msgspec

from model.engine.kv_blocks import BlockError
from model.engine.plan import Outcome
from model.engine.scheduling.fair_shares import Holdings
from model.engine.sequence import EncoderInput, ItemKey, StoreKey


class CacheNews(NamedTuple):
    """What changed since the last time: for the server, of what is stored by content alone."""

    gone: tuple[bytes, ...]  # first these went
    kept: tuple[tuple[bytes, int], ...]  # then these came, with their bytes
    unread: tuple[EncoderInput, ...]  # items whose segments nobody will open: their embeddings are there without


class EncoderCache:
    """Embeddings are in host memory from their step to the end of their requests, so that a preemption costs none.

    Those that are stored by content stay after that, until a request needs their room: least recently used first.
    What requests reserved and what stays without them is within the capacity together. An item counts for each request
    that has it. A device has embeddings, too, while their prompt is computed, as far as there is room. A plan tells the
    runner what goes.
    """

    def __init__(self, capacity: int, device_capacity: int, *, keeps: bool = True) -> None:
        """Bytes: in host memory, and on a device beside it; a CPU has no second copy.

        keeps: whether anything stays after its requests.
        """
        self.held: Holdings[int] = Holdings(capacity)  # bytes of requests, from first admission to end, by client
        self.on_device = self.idle = 0  # bytes; idle: that stay without a request
        self.queries = self.hits = 0  # items of requests since the start; those that were not encoded for them
        self.spoiled: set[StoreKey] = set()  # of those that requests have: they stay no longer than these
        self._keeps = keeps
        self._device_capacity = device_capacity
        self._requests: dict[str, tuple[int, tuple[EncoderInput, ...]]] = {}  # that have a reservation, with client
        self._users: dict[StoreKey, dict[ItemKey, EncoderInput]] = {}  # items of these
        self._stored: dict[StoreKey, int] = {}  # embeddings that there are, and their bytes
        self._waiting: set[ItemKey] = set()  # items of requests that nothing was found for so far
        self._idle: dict[StoreKey, int] = {}  # those of them that no request has, least recently used first
        self._resident: dict[StoreKey, int] = {}  # those on the device, and their bytes
        self._freed: list[StoreKey] = []  # what the next plan frees
        # Those that a plan has freed or is making, until the outcome says what came of it.
        self._leaving: set[StoreKey] = set()
        self._making: dict[StoreKey, EncoderInput] = {}
        self._gone: list[bytes] = []
        self._kept: dict[bytes, int] = {}
        self._unread: list[EncoderInput] = []

    @property
    def reserved(self) -> int:
        """Bytes, of all requests."""
        return int(self.held.total)

    def reserves(self, request_id: str) -> bool:
        """Whether the request was admitted before."""
        return request_id in self._requests

    def lacks(self, items: Iterable[EncoderInput]) -> bool:
        """Whether one of these came without a segment, for its embeddings, and they are gone."""
        good = self._stored.keys() - self.spoiled if self.spoiled else self._stored
        return any(item.segment is None and item.stored not in good for item in items)

    def reserve(self, request_id: str, client: int, items: tuple[EncoderInput, ...], n_cached: int = 0) -> None:
        """Nothing for a request that has a reservation. What stays without a request makes room.

        n_cached: tokens of the prompt whose keys and values are there: an item wholly inside them is a hit.
        """
        if request_id in self._requests:
            return
        self._requests[request_id] = client, items
        self.held.take(client, sum(item.nbytes for item in items))
        for item in items:
            self._users.setdefault(item.stored, {})[item.key] = item
            self.idle -= self._idle.pop(item.stored, 0)
            self.queries += 1
            if item.stop <= n_cached:
                self.hits += 1
            else:
                self._waiting.add(item.key)
            if item.stored in self._stored:
                self._hit(item)
        self._make_room()

    def release(self, request_id: str) -> None:
        """The request ended."""
        client, items = self._requests.pop(request_id, (0, ()))
        self.held.give(client, sum(item.nbytes for item in items))
        self._unread = [item for item in self._unread if item.key[0] != request_id]
        for item in items:
            self._waiting.discard(item.key)
            users = self._users[item.stored]
            del users[item.key]
            if not users:
                del self._users[item.stored]
                if item.stored in self._stored:
                    self._rest(item)

    def spoil(self, items: Iterable[EncoderInput]) -> None:
        """What came of these was not finite: whoever has them goes on with them, and they are made anew for others."""
        for item in items:
            if item.stored in self._stored and item.stored not in self.spoiled:
                self.spoiled.add(item.stored)
                self._tell_gone(item.stored)

    def unspoiled(self, items: Iterable[EncoderInput]) -> tuple[EncoderInput, ...]:
        """As a request without a reservation has these: what is spoiled is made for it alone, out of its segment."""
        return tuple([
            msgspec.structs.replace(item, content=b"") if item.stored in self.spoiled else item for item in items
        ])  # fmt: skip

    def keys(self) -> set[StoreKey]:
        """Of all embeddings that there are, those that the next plan frees too."""
        return {*self._stored, *self._freed}

    def missing(self, items: Iterable[EncoderInput]) -> list[EncoderInput]:
        """Those that have none, and for whose own request no step under way makes them, by their first placeholders."""
        found = []
        for item in items:
            made = self._making.get(item.stored)
            if item.stored not in self._stored and (made is None or made.key[0] != item.key[0]):
                found.append(item)
        return sorted(found, key=lambda item: item.first) if len(found) > 1 else found

    def holds(self, key: StoreKey) -> bool:
        """Whether there are these embeddings, or a step under way makes them."""
        return key in self._stored or key in self._making

    def makes(self, key: StoreKey) -> bool:
        """Whether a step under way makes these embeddings."""
        return key in self._making

    def plan(
        self, computing: Collection[str], encodes: Sequence[EncoderInput]
    ) -> tuple[tuple[StoreKey, ...], tuple[StoreKey, ...]]:
        """(what the next step frees, what it keeps off the device, of its own `encodes` too).

        computing: requests that are inside their prompt.
        """
        freed, self._freed = tuple(self._freed), []
        self._leaving.update(freed)
        for key in freed:
            self._take_off(key)
        offloaded = [key for key in self._resident if not self._computes(key, computing)]
        for key in offloaded:
            self._take_off(key)
        for item in encodes:
            self._making[item.stored] = item
            if self.on_device + item.nbytes <= self._device_capacity:
                self._resident[item.stored] = item.nbytes
                self.on_device += item.nbytes
            else:
                offloaded.append(item.stored)
        return freed, tuple(offloaded)

    def commit(self, outcome: Outcome) -> None:
        """What the step made and dropped; before requests that failed are released. Raises BlockError for a leak."""
        for key in outcome.filled:
            made = self._making.pop(key, None)
            if made is None:
                raise BlockError("embeddings came that no step was to make")
            self._stored[key] = made.nbytes
            self._waiting.discard(made.key)
            if made.content and self._keeps:
                self._kept[made.content] = made.nbytes
            for item in self._users.get(key, {}).values():
                if item is not made:
                    self._hit(item)
            if key not in self._users:  # its request ended meanwhile
                self._rest(made)
                self._make_room()
        for item in [item for item in self._making.values() if item.key in outcome.failed]:
            del self._making[item.stored]
            self._take_off(item.stored)
        self._leaving.difference_update(outcome.dropped)
        if self._leaving:
            raise BlockError("embeddings that were freed were not dropped")

    def news(self) -> CacheNews:
        """What is told once, after each plan and its commit."""
        found = CacheNews(tuple(self._gone), tuple(self._kept.items()), tuple(self._unread))
        self._gone, self._kept, self._unread = [], {}, []
        return found

    def check_integrity(self, requests: Iterable[str]) -> None:
        """Raise BlockError unless the books add up. requests: that have not ended."""
        items = [item for _, items in self._requests.values() for item in items]
        if self.reserved != sum(item.nbytes for item in items):
            raise BlockError("the embedding budget does not add up")
        if self.idle != sum(self._idle.values()) or (self.idle and self.reserved + self.idle > self.held.capacity):
            raise BlockError("embeddings without a request take room that requests need")
        if not self._requests.keys() <= set(requests):
            raise BlockError("embeddings are reserved for a request that ended")
        if sorted(item.key for item in items) != sorted(key for users in self._users.values() for key in users):
            raise BlockError("the users of embeddings are not the requests that reserved them")
        if self._stored.keys() - self._users.keys() != self._idle.keys() or self._idle.keys() & self._users.keys():
            raise BlockError("embeddings of a request without a reservation are held")
        if self.on_device != sum(self._resident.values()) or self._resident.keys() - {
            *self._stored,
            *self._making,
            *self._freed,
        }:
            raise BlockError("the embeddings on the device do not add up")

    def _hit(self, item: EncoderInput) -> None:
        """Its embeddings are there, made for somebody else."""
        if item.key in self._waiting:
            self._waiting.remove(item.key)
            self.hits += 1
        if item.segment is not None:
            self._unread.append(item)

    def _rest(self, item: EncoderInput) -> None:
        """No request has its embeddings any more."""
        self._idle[item.stored] = item.nbytes
        self.idle += item.nbytes
        if not (item.content and self._keeps) or item.stored in self.spoiled:
            self._free(item.stored)

    def _make_room(self) -> None:
        while self._idle and self.reserved + self.idle > self.held.capacity:
            self._free(next(iter(self._idle)))

    def _free(self, key: StoreKey) -> None:
        """Of what no request has."""
        self.idle -= self._idle.pop(key)
        del self._stored[key]
        self._freed.append(key)
        if key in self.spoiled:
            self.spoiled.remove(key)  # that it goes was told
        else:
            self._tell_gone(key)

    def _tell_gone(self, key: StoreKey) -> None:
        if self._keeps and isinstance(key, bytes):
            self._kept.pop(key, None)
            self._gone.append(key)

    def _computes(self, key: StoreKey, computing: Collection[str]) -> bool:
        return any(request_id in computing for request_id, _ in self._users.get(key, ()))

    def _take_off(self, key: StoreKey) -> None:
        self.on_device -= self._resident.pop(key, 0)
