"""Between host and device: media on their way in through pinned memory used in turn, results on their way out."""

import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.staging.streams import HostMemory, Streams

_IN_TURN = 2  # one is read into while the copy of the other runs
_KEPT_BYTES = 64 << 20  # of one: a larger medium gets memory of its own
_GROWTH = 2  # of what results need: their memory is made so many times as large
_ALIGNMENT = 64  # bytes, of a result


class Uploads:
    """Where media are read into: pinned memory, each time after its last copy to the device is done."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.behind = streams.behind
        self._memories = [HostMemory(torch.empty(0, dtype=torch.uint8)) for _ in range(_IN_TURN)]

    def open(self, shape: Sequence[int], dtype: Any) -> "Upload":
        """Room for one array. Waits for the last copy out of its memory."""
        kind = np.dtype(dtype)
        nbytes = math.prod(shape) * kind.itemsize
        self._memories.reverse()
        memory = self._memories[0]
        memory.wait()
        if len(memory.tensor) < nbytes or not self._streams.behind or len(memory.tensor) > _KEPT_BYTES:
            memory = self._memories[0] = HostMemory(self._streams.host_memory(nbytes))
        return Upload(self._streams, memory, memory.tensor[:nbytes].numpy().view(kind).reshape(tuple(shape)))


class Upload:
    """One array: written on the host, then sent."""

    def __init__(self, streams: Streams, memory: HostMemory, array: np.ndarray) -> None:
        self._streams, self._memory, self.array = streams, memory, array

    def send(self) -> Tensor:
        """The array on the device by one asynchronous copy; on a CPU the array itself."""
        host = torch.from_numpy(self.array)
        if not self._streams.behind:
            return host
        # As a view of the pinned tensor: what numpy gives back is not known to be pinned by every torch.
        host = self._memory.tensor[: host.nbytes].view(host.dtype).view(host.shape)
        sent = host.to(self._streams.device, non_blocking=True, copy=True)
        self._memory.copied = self._streams.record()
        return sent


class Results:
    """Brings results back: into pinned memory that is kept between steps, behind one wait for all of them."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._host = torch.empty(0, dtype=torch.uint8)
        self.waited = 0.0  # seconds that the last call stood still

    def fetch(self, *tensors: Tensor) -> list[np.ndarray]:
        """Copies of contiguous tensors, valid until the next call. Raises what failed on the device before them.

        Without tensors nothing is waited for.
        """
        self.waited = 0.0
        if not tensors:
            return []
        if not self._streams.behind:
            return [tensor.numpy() for tensor in tensors]
        sizes = [-(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
        if sum(sizes) > len(self._host):
            self._host = self._streams.host_memory(_GROWTH * sum(sizes))
        found, at = [], 0
        for tensor, size in zip(tensors, sizes, strict=True):
            host = self._host[at : at + math.prod(tensor.shape) * tensor.itemsize].view(tensor.dtype).view(tensor.shape)
            host.copy_(tensor, non_blocking=True)
            found.append(host.numpy())
            at += size
        behind = self._streams.record()
        started = time.perf_counter()
        behind.wait()
        self.waited = time.perf_counter() - started
        return found
