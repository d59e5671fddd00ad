"""The ranks of an engine that is several processes: they start together, and when one ends or hangs, all end.

Rank 0 is the engine that the server talks with (engine_client.py). The others have a channel for their start, their
pulse and their end alone. What the ranks say to each other goes over sockets that they inherit.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from msgspec.structs import replace

from configs.serve import ServeConfig
from model.engine.messages import EnginePulse, FromEngine, RankReady, StartEngine
from server.children.processes import END_SECONDS
from server.children.supervisor import SupervisedChild
from server.metrics import Metrics
from shm import Owner, channel_pair

_MEETING = "pixelferry-meeting"


class Rank(SupervisedChild):
    """One that is not the first, over all its incarnations."""

    def __init__(self, number: int, start: StartEngine, config: ServeConfig, owner: Owner, metrics: Metrics) -> None:
        super().__init__("engine", start, FromEngine, config, owner, metrics)
        self.number = number
        self.name = f"engine rank {number}"
        self.attended: asyncio.Task[int] | None = None  # done once this incarnation is reaped

    def begin(self) -> None:
        """Start an incarnation. Raises OSError while the machine has no room."""
        child = self.launch()
        self.on_started(child)
        self.tell(self.start)
        self.attended = asyncio.create_task(self.attend(child))

    def handle(self, message: FromEngine) -> None:
        match message:
            case RankReady():
                self.on_ready()
            case EnginePulse():
                pass  # its Liveness has heard it
            case _:
                raise ValueError(f"rank {self.number} said {type(message).__name__}, which is for rank 0 to say")

    def on_unavailable(self) -> None:
        super().on_unavailable()
        for other in self.fellows:  # the engine takes nothing any more
            if not isinstance(other, Rank):
                other.on_unavailable()

    async def end(self, grace: float = END_SECONDS) -> None:
        if self.attended is not None:
            self.attended.cancel()
        await super().end(grace)


class RankGroup:
    """All ranks but the first, which has the group."""

    def __init__(
        self, first: SupervisedChild, start: StartEngine, config: ServeConfig, owner: Owner, metrics: Metrics
    ) -> None:
        self._first, self._start = first, start
        self._culprit: Rank | None = None  # of the latest incarnation: who ended before the first one
        self.ranks = tuple(Rank(i, start, config, owner, metrics) for i in range(1, config.engine.tensor_parallel))
        every = (first, *self.ranks)
        for one in every if self.ranks else ():
            one.fellows = tuple(other for other in every if other is not one)

    @property
    def attended(self) -> list["asyncio.Task[int]"]:
        return [rank.attended for rank in self.ranks if rank.attended is not None]

    def end_in_words(self) -> tuple[str | None, str] | None:
        """As of SupervisedChild, of the rank whose end ended the others; None: it was the first one's."""
        rank = self._culprit
        if rank is None or rank.child is None or rank.attended is None:
            return None
        told, died = rank.end_in_words(rank.attended.result())
        return told, f"{died} of {rank.name}, process {rank.child.pid}"

    @contextmanager
    def launched(self) -> Iterator[None]:
        """All ranks but the first run; that one is launched inside, and nobody keeps what they inherit afterwards.

        Raises OSError while the machine has no room: those that run then have to be ended.
        """
        self._culprit = None
        with ExitStack() as kept:
            meeting = os.memfd_create(_MEETING)  # each incarnation has a new one: what lies in it is found by no name
            kept.callback(os.close, meeting)
            links = []
            for rank in self.ranks:
                ours, theirs = (kept.enter_context(sock) for sock in channel_pair())
                links.append(ours.fileno())
                self._give(rank, rank.number, (theirs.fileno(),), meeting)
                rank.begin()
            self._give(self._first, 0, tuple(links), meeting)
            yield

    def _give(self, one: SupervisedChild, number: int, links: tuple[int, ...], meeting: int) -> None:
        one.start = replace(self._start, rank=number, links=links, meeting=meeting)
        one.inherits = (*links, meeting)

    async def reap(self) -> None:
        """Kill those that run, and wait until nothing of any runs. Raises what attending to one of them raised."""
        self._culprit = next((rank for rank in self.ranks if rank.attended is not None and rank.attended.done()), None)
        for rank in self.ranks:
            if rank.child is not None:
                rank.child.kill()
        await asyncio.gather(*self.attended)

    async def end(self, grace: float) -> None:
        """As of SupervisedChild."""
        await asyncio.gather(*(rank.end(grace) for rank in self.ranks))
