"""Where media are read into: pinned memory that is used in turn, each time after its copy to the device is done."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.staging.streams import HostMemory, Streams

_IN_TURN = 2  # one is read into while the copy of the other runs
_KEPT_BYTES = 64 << 20  # of one: a larger medium gets memory of its own


class Uploads:
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
