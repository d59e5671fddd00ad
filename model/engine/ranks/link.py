"""Between the ranks of one engine: what rank 0 tells the others before each step, and what all of them agree on.

Rank 0 has a socket to each other rank, and they have none to each other. The sockets are on the side of the host: what
comes by them waits for no device. When a rank ends, its sockets close, and whoever waits for it ends, too.
"""

import os
import select
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import msgspec

from model.engine.batch import Batch, BatchHeader
from model.engine.messages import StartEngine
from model.engine.plan import FailureCode, Plan
from model.engine.sampling.metadata import SamplingMetadata
from model.engine.sequence import ItemKey
from shm import Channel, ChannelClosed, send_to_all

_LOST_SECONDS = 1.0  # how long a process that ends may take to close its sockets, one after another
_NOT_SAMPLED = SamplingMetadata(n_rows=0)

T = TypeVar("T")


class StepMessage(msgspec.Struct, frozen=True, tag=True):
    """All that another rank gets of a step: nothing of what is sampled, which rank 0 does alone."""

    plan: Plan
    header: BatchHeader
    payload: tuple[memoryview, ...]  # packed arrays of the forward pass


class FreeMessage(msgspec.Struct, frozen=True, tag=True):
    """Embeddings go, and there is no step."""

    plan: Plan


class CaptureMessage(msgspec.Struct, frozen=True, tag=True):
    """Graphs of decode steps are captured now."""


class MediaFailures(msgspec.Struct, frozen=True, tag=True):
    """Media of a step that failed on one rank, or on any: what is told of each, and its code."""

    failed: tuple[tuple[ItemKey, str, FailureCode], ...]


class CacheBlocks(msgspec.Struct, frozen=True, tag=True):
    """For how many blocks a rank has room."""

    n: int


class DeviceFound(msgspec.Struct, frozen=True, tag=True):
    """What a rank computes on."""

    kind: str  # type of torch.device; "": the ranks found several


class GraphRefusal(msgspec.Struct, frozen=True, tag=True):
    """What a device said that captures no graph; "": it captured one."""

    said: str


RankMessage = StepMessage | FreeMessage | CaptureMessage | MediaFailures | CacheBlocks | DeviceFound | GraphRefusal


class RankLink:
    """One rank's end. All ranks make the same calls in the same order, as they do of collectives."""

    def __init__(self, rank: int, n: int, socks: Sequence[socket.socket]) -> None:
        """socks: of rank 0 one to each other rank, in their order; of each of these the one to rank 0."""
        self.rank, self.n = rank, n
        self._socks = socks
        self._channels = [Channel[Any](sock, RankMessage) for sock in socks]
        self.n_broadcasts = self.n_exchanges = 0  # of rank 0, since the start

    def send_step(self, plan: Plan, batch: Batch) -> None:
        """Rank 0, before its own step begins."""
        header = msgspec.structs.replace(batch.header, sampling=_NOT_SAMPLED)
        self.broadcast(StepMessage(plan, header, tuple(batch.forward_payload())))

    def broadcast(self, message: RankMessage) -> None:
        """Rank 0. Waits where a rank does not read for long. Raises ChannelClosed where one is gone."""
        self.n_broadcasts += 1
        send_to_all(self._channels, message)

    def receive(self) -> RankMessage:
        """What rank 0 sends next. Raises ChannelClosed where it is gone."""
        message: RankMessage | None = self._channels[0].recv(None)
        assert message is not None, "it waits as long as it takes"
        return message

    def agree(self, mine: T, merge: Callable[[Sequence[T]], T]) -> T:
        """What rank 0 makes of what every rank found, in their order. Raises ChannelClosed where one is gone."""
        if self.rank == 0:
            self.n_exchanges += 1
            found = merge([mine, *[cast(T, channel.recv(None)) for channel in self._channels]])
            send_to_all(self._channels, found)
            return found
        self._channels[0].send(mine)
        agreed: T | None = self._channels[0].recv(None)
        assert agreed is not None, "it waits as long as it takes"
        return agreed

    def lost(self) -> bool:
        """Whether a rank at the other end is gone, or goes within a moment."""
        poll = select.poll()
        for sock in self._socks:
            poll.register(sock, select.POLLRDHUP)
        return bool(poll.poll(_LOST_SECONDS * 1000))

    def close(self) -> None:
        for channel in self._channels:
            channel.close()


def open_link(start: StartEngine) -> RankLink | None:
    """None where the engine is one process."""
    if not start.links:
        return None
    os.set_inheritable(start.meeting, False)  # the sockets' channels see to theirs
    return RankLink(start.rank, start.engine.tensor_parallel, [socket.socket(fileno=fd) for fd in start.links])


def common(found: Sequence[DeviceFound]) -> DeviceFound:
    """What all of them compute on."""
    return found[0] if len(set(found)) == 1 else DeviceFound("")


def fewest(found: Sequence[CacheBlocks]) -> CacheBlocks:
    """What every rank has room for."""
    return min(found, key=lambda one: one.n)


def refused_anywhere(link: RankLink | None, said: str) -> str:
    """What was refused on any rank, by what this one's device said; "": on none. Every rank asks after each capture."""
    return said if link is None else link.agree(GraphRefusal(said), first_refusal).said


def first_refusal(found: Sequence[GraphRefusal]) -> GraphRefusal:
    """The lowest rank's."""
    return next((one for one in found if one.said), GraphRefusal(""))


def all_failures(found: Sequence[MediaFailures]) -> MediaFailures:
    """What failed on one rank failed, with the lowest one's error."""
    failed: dict[ItemKey, tuple[ItemKey, str, FailureCode]] = {}
    for one in found:
        for error in one.failed:
            failed.setdefault(error[0], error)
    return MediaFailures(tuple(failed.values()))


def ended_with(link: RankLink | None, error: RuntimeError) -> Exception:
    """The error of a rank: that of its own, or ChannelClosed where a collective failed because another rank is gone."""
    if link is None or not link.lost():
        return error
    return ChannelClosed(f"another rank is gone ({error})")
