"""A double of a device that runs behind the host: its events are done when they are waited for, and may fail then."""

from collections.abc import Callable

import torch
from torch import Tensor

from model.staging.streams import Event


class Late:
    """Its memory is the host's, so that all is computed on the spot; `waits` counts, `fails` is raised once."""

    behind = True
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.waits = 0
        self.fails: Callable[[], Exception] | None = None  # of what is recorded next

    def host_memory(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def record(self) -> Event:
        fails, self.fails = self.fails, None
        return _Pending(self, fails)


class _Pending:
    def __init__(self, streams: Late, fails: Callable[[], Exception] | None) -> None:
        self._streams, self._fails, self._done = streams, fails, False

    def done(self) -> bool:
        return self._done

    def wait(self) -> None:
        self._streams.waits += 1
        self._done = True
        if self._fails is not None:
            raise self._fails()
