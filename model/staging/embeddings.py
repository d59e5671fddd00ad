"""The tensors of embeddings by item: in host memory, and on the device beside it. A plan says what goes and stays."""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

from torch import Tensor

from model.staging.streams import Event, Streams

Item = TypeVar("Item", bound=Hashable)
"""By which embeddings are found: of a request's item today."""


class EmbeddingStore(Generic[Item]):
    """Of each item [n_tokens, media_width]. A CPU has no second copy."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._host: dict[Item, _OnHost] = {}
        self._device: dict[Item, Tensor] = {}
        self._going: list[_OnHost] = []  # let go, and still written to

    def keys(self) -> set[Item]:
        return set(self._host)

    def nbytes_on_device(self) -> int:
        return sum(found.nbytes for found in self._device.values())

    def put(self, fresh: Mapping[Item, Tensor], host_only: Collection[Item]) -> None:
        """Copy embeddings to host memory; nobody waits for that. host_only: those of which the device keeps nothing."""
        found = {key: _alone(embeddings) for key, embeddings in fresh.items()}
        self._host.update(zip(found, _on_host(list(found.values()), self._streams), strict=True))
        if self._streams.behind:
            self._device.update({key: embeddings for key, embeddings in found.items() if key not in host_only})

    def free(self, keys: Iterable[Item]) -> tuple[Item, ...]:
        """-> those that are gone: all of them."""
        gone = tuple(keys)
        let_go = [self._host.pop(key) for key in gone if key in self._host]
        self._going = [host for host in (*self._going, *let_go) if not host.copied.done()]
        self.offload(gone)
        return gone

    def offload(self, keys: Iterable[Item]) -> None:
        for key in keys:
            self._device.pop(key, None)

    def part(self, key: Item, first: int, last: int) -> Tensor:
        """Rows `first` to `last`, on the device. Raises RuntimeError where there are none."""
        found = self._device.get(key)
        if found is None:
            if key not in self._host:
                raise RuntimeError("a chunk reaches a medium that was not encoded")
            found = self._host[key].embeddings  # written by then: the stream is the one of their copy
        # From host memory where the device's copy was given up: pinned, so that nobody waits.
        return found[first:last].to(self._streams.device, non_blocking=True)


class _OnHost(NamedTuple):
    """Embeddings in host memory, which are there when their event is done."""

    embeddings: Tensor
    copied: Event


def _on_host(embeddings: Sequence[Tensor], streams: Streams) -> list[_OnHost]:
    """Of a CPU the tensors themselves."""
    hosts = list(embeddings)
    if streams.behind:
        hosts = [streams.host_memory(one.nbytes).view(one.dtype).view(one.shape) for one in embeddings]
        for host, one in zip(hosts, embeddings, strict=True):
            host.copy_(one, non_blocking=True)
    copied = streams.record()
    return [_OnHost(host, copied) for host in hosts]


def _alone(embeddings: Tensor) -> Tensor:
    """In memory of its own, so that it goes when it is let go."""
    return embeddings if embeddings.untyped_storage().nbytes() == embeddings.nbytes else embeddings.clone()
