"""The books of embeddings by item: reserved, made, on the device. Plan and commit alone change them; no tensors."""

from collections.abc import Collection, Iterable, Sequence

from model.engine.kv_blocks import BlockError
from model.engine.plan import Outcome
from model.engine.scheduling.fair_shares import Holdings
from model.engine.sequence import EncoderInput, ItemKey


class EncoderCache:
    """Embeddings are in host memory from their step to the end of their request, so that a preemption costs none.

    A device has them, too, while their prompt is computed, as far as there is room. A plan tells the runner what goes.
    """

    def __init__(self, capacity: int, device_capacity: int) -> None:
        """Bytes: in host memory, and on a device beside it; a CPU has no second copy."""
        self.held: Holdings[int] = Holdings(capacity)  # bytes of requests, from first admission to end, by client
        self.on_device = 0  # bytes
        self._device_capacity = device_capacity
        self._requests: dict[str, tuple[int, tuple[EncoderInput, ...]]] = {}  # that have a reservation, with client
        self._held: set[ItemKey] = set()  # that have embeddings
        self._resident: dict[ItemKey, int] = {}  # those on the device, and their bytes
        self._freed: list[ItemKey] = []  # those of ended requests, which the next plan frees
        # Those that a plan has freed or is making, until the outcome says what came of it.
        self._leaving: set[ItemKey] = set()
        self._making: set[ItemKey] = set()

    @property
    def reserved(self) -> int:
        """Bytes, of all requests."""
        return int(self.held.total)

    def reserves(self, request_id: str) -> bool:
        """Whether the request was admitted before."""
        return request_id in self._requests

    def reserve(self, request_id: str, client: int, items: tuple[EncoderInput, ...]) -> None:
        """Nothing for a request that has a reservation."""
        if request_id not in self._requests:
            self._requests[request_id] = client, items
            self.held.take(client, sum(item.nbytes for item in items))

    def release(self, request_id: str) -> None:
        """The request ended."""
        client, items = self._requests.pop(request_id, (0, ()))
        self.held.give(client, sum(item.nbytes for item in items))
        self._freed += [item.key for item in items if item.key in self._held]
        self._held.difference_update(self._freed)

    def keys(self) -> set[ItemKey]:
        """Of all embeddings that there are, those that the next plan frees too."""
        return {*self._held, *self._freed}

    def missing(self, items: Iterable[EncoderInput]) -> list[EncoderInput]:
        """Those that have none, by their first placeholders."""
        found = [item for item in items if not self.holds(item.key)]
        return sorted(found, key=lambda item: item.first) if len(found) > 1 else found

    def holds(self, key: ItemKey) -> bool:
        """Whether a request that has not ended has these embeddings, or a step under way makes them."""
        return key in self._held or key in self._making

    def plan(
        self, computing: Collection[str], encodes: Sequence[EncoderInput]
    ) -> tuple[tuple[ItemKey, ...], tuple[ItemKey, ...]]:
        """(what the next step frees, what it keeps off the device, of its own `encodes` too).

        computing: requests that are inside their prompt.
        """
        freed, self._freed = tuple(self._freed), []
        self._leaving.update(freed)
        for key in freed:
            self._take_off(key)
        offloaded = [key for key in self._resident if key[0] not in computing]
        for key in offloaded:
            self._take_off(key)
        for item in encodes:
            self._making.add(item.key)
            if self.on_device + item.nbytes <= self._device_capacity:
                self._resident[item.key] = item.nbytes
                self.on_device += item.nbytes
            else:
                offloaded.append(item.key)
        return freed, tuple(offloaded)

    def commit(self, outcome: Outcome) -> None:
        """What the step made and dropped; before requests that failed are released. Raises BlockError for a leak."""
        self._held.update(outcome.filled)
        self._making.difference_update(outcome.filled, outcome.failed)
        self._leaving.difference_update(outcome.dropped)
        for key in outcome.failed:
            self._take_off(key)
        if self._leaving:
            raise BlockError("embeddings that were freed were not dropped")

    def check_integrity(self, requests: Iterable[str]) -> None:
        """Raise BlockError unless the books add up. requests: that have not ended."""
        if self.reserved != sum(item.nbytes for _, items in self._requests.values() for item in items):
            raise BlockError("the embedding budget does not add up")
        if not self._requests.keys() <= set(requests):
            raise BlockError("embeddings are reserved for a request that ended")
        if self._held - {item.key for _, items in self._requests.values() for item in items}:
            raise BlockError("embeddings of a request without a reservation are held")
        if self.on_device != sum(self._resident.values()) or self._resident.keys() - {
            *self._held,
            *self._making,
            *self._freed,
        }:
            raise BlockError("the embeddings on the device do not add up")

    def _take_off(self, key: ItemKey) -> None:
        self.on_device -= self._resident.pop(key, 0)
