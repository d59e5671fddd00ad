"""A rank that is not the first: it runs the steps that rank 0 sends, and gives nothing out."""

import time
from collections.abc import Callable
from typing import NoReturn

from model.engine.batch import Batch
from model.engine.plan import Progress, progress_of
from model.engine.ranks.link import CaptureMessage, FreeMessage, RankLink, StepMessage
from model.engine.runner import Runner


class Follower:
    """It knows no request, no scheduler and no token. One thread calls `run`; others may read only `progress`."""

    def __init__(self, runner: Runner, link: RankLink, capture_graphs: Callable[[], None]) -> None:
        self._runner, self._link, self._capture_graphs = runner, link, capture_graphs
        self.progress: Progress | None = None

    def run(self) -> NoReturn:
        """Raises ChannelClosed when rank 0 is gone, and what a step raises."""
        while True:
            self.take()

    def take(self) -> None:
        """Wait for what rank 0 sends next, and do it."""
        match message := self._link.receive():
            case StepMessage():
                self.progress = progress_of(message.plan, time.monotonic())
                batch = Batch(message.header, self._runner.packer)
                for room, part in zip(batch.payload, message.payload, strict=True):
                    room[:] = part
                self._runner.launch(message.plan, batch)
                self.progress = None
            case FreeMessage():
                self._runner.free(message.plan)
            case CaptureMessage():
                self._capture_graphs()
            case _:
                raise ValueError(f"{type(message).__name__} came where rank 0 sends a step")
