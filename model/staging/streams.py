"""Streams, events and pinned memory of a device behind one small seam, which a CPU without them satisfies too."""

import re
from typing import Any, Protocol

import torch
from torch import Tensor

_REFUSED = re.compile(r"\b[15]61\d{3}\b")  # CANN: the host's side of one operator refused its arguments
_INNER = "The Inner error is reported"  # torch_npu says this once of a launch that failed, and then nothing more


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


class HostMemory:
    """Bytes of the host that copies to a device are made of, and used again when the last copy is done."""

    def __init__(self, tensor: Tensor) -> None:
        """tensor: uint8 [n], as Streams.host_memory gives it."""
        self.tensor = tensor
        self.bytes = tensor.numpy().data if len(tensor) else memoryview(b"")
        self.copied: Event | None = None  # None: there is no copy that could still read it

    def wait(self) -> None:
        """Until nothing reads it."""
        if self.copied is not None and not self.copied.done():
            self.copied.wait()
        self.copied = None


def open_streams(device: torch.device) -> Streams:
    """Of a device that is ready for its first operator."""
    return Inline(device) if device.type in ("cpu", "meta") else Behind(device)


def is_broken(error: Exception, *, behind: bool = True) -> bool:
    """Whether it is an error of a device behind which nothing runs any more in this process.

    behind: as of Streams. Then that is every error but our own, memory that cannot be had, and arguments that an
    operator refused before it was launched: whatever failed in a queue is told once, and its number may be missing.
    """
    if isinstance(error, torch.AcceleratorError):
        return True
    said = str(error)
    return behind and type(error) is RuntimeError and (_INNER in said or not _REFUSED.search(said))


class Inline:
    """A CPU: an operation is done when it returns."""

    behind = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_memory(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)

    def record(self) -> Event:
        return _Past()


class _Past:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        """Nothing runs that could be waited for."""


class Behind:
    """A CUDA device or an NPU, through torch's module for it. Its stream is the one that is current at first."""

    behind = True

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._module: Any = torch.get_device_module(device)
        self._current = self._module.current_stream(device)

    def host_memory(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def record(self) -> Event:
        event = self._module.Event()
        event.record(self._current)  # to ask for the current stream costs more than to record
        return _Recorded(event)


class _Recorded:
    def __init__(self, event: Any) -> None:
        self._event = event

    def done(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()
