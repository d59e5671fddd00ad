"""Streams, events and pinned memory of a device behind one small seam, which a CPU without them satisfies too."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor

_BROKEN = re.compile(
    r"\b507\d{3}\b"
)  # CANN: a kernel, a stream or the device itself failed, and nothing runs behind it


class Event(Protocol):
    """A point in the work of a stream."""

    def done(self) -> bool:
        """Whether the device came to it; does not wait."""

    def wait(self) -> None:
        """Until the device came to it. Raises RuntimeError for what failed before it."""


class Streams(Protocol):
    @property
    def device(self) -> torch.device:
        """That the streams are of."""

    @property
    def behind(self) -> bool:
        """The device runs behind the host: what is read back is waited for, and copies run beside the host."""

    def host_memory(self, nbytes: int) -> Tensor:
        """uint8 [nbytes] of host memory, pinned where copies run beside the host."""

    def record(self) -> Event:
        """An event behind all that the current stream was given."""

    def side(self) -> AbstractContextManager[None]:
        """Inside it the current stream is another one, which begins behind all that the main one was given."""


def open_streams(device: torch.device) -> Streams:
    """Of a device that is ready for its first operator."""
    return Inline(device) if device.type in ("cpu", "meta") else Behind(device)


def is_broken(error: RuntimeError) -> bool:
    """Whether a device's error is one behind which nothing runs any more in this process."""
    return isinstance(error, torch.AcceleratorError) or _BROKEN.search(str(error)) is not None


class Inline:
    """A CPU: an operation is done when it returns."""

    behind = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_memory(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def record(self) -> Event:
        return _Past()

    def side(self) -> AbstractContextManager[None]:
        return nullcontext()


class _Past:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing runs that could be waited for."""


class Behind:
    """A CUDA device or an NPU, through torch's module for it. Its main stream is the one that is current at first."""

    behind = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._main = self._current = self._module.current_stream(device)
        self._side = self._module.Stream(device)

    def host_memory(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def record(self) -> Event:
        event = self._module.Event()
        event.record(self._current)  # to ask for the current stream costs more than to record
        return _Recorded(event)

    @contextmanager
    def _beside(self) -> Iterator[None]:
        self._side.wait_stream(self._main)
        with self._module.stream(self._side):
            self._current = self._side
            try:
                yield
            finally:
                self._current = self._main

    def side(self) -> AbstractContextManager[None]:
        return self._beside()


class _Recorded:
    def __init__(self, event: Any) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()
