"""Counts how many bytes tensors take, at this moment and at their peak: of tensors with memory or without it."""

import weakref
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors that operations inside it made."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: int = 0
        self.peak: int = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_storage_of(x)._cdata for x in tree_iter((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for found in tree_iter(out):
            if isinstance(found, Tensor) and _storage_of(found)._cdata not in given | self._known:
                self._count(_storage_of(found))
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        self._known.add(storage._cdata)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, address: int, nbytes: int) -> None:
        self._known.discard(address)
        self.live -= nbytes


def _storage_of(tensor: Tensor) -> torch.UntypedStorage:
    return tensor.untyped_storage()
