"""Brings results back to the host: into pinned memory that is kept between steps, behind one wait for all of them."""

import math
import time

import numpy as np
import torch
from torch import Tensor

from model.staging.streams import Streams

_GROWTH = 2
_ALIGNMENT = 64  # bytes


class Results:
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
