"""How many bytes an operation takes at its peak, by the shapes alone: on tensors without memory or with it."""

import importlib
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def peak_by_shapes(run: Callable[[], object]) -> int:
    """Of the tensors that `run` makes, on whatever device."""
    with LiveBytes() as live, _FusedAttention():
        run()
    peak: int = live.peak
    return peak


@contextmanager
def without_compiler() -> Iterator[None]:
    """Inside it no operation loads torch's compiler, which takes longer than a whole profile by shapes.

    Most of torch's operations on the device "meta" are Python, and each asks the compiler to leave it alone. Where
    nothing is compiled there is nothing to ask. Whatever else is wanted of the compiler loads it.
    """
    if _COMPILER in sys.modules:
        yield
        return
    stand_in = _NoCompiler(_COMPILER)
    sys.modules[_COMPILER] = stand_in
    try:
        yield
    finally:
        if sys.modules.get(_COMPILER) is stand_in:
            del sys.modules[_COMPILER]


_COMPILER = "torch._dynamo"


class _NoCompiler(ModuleType):
    @staticmethod
    def disable(run: Callable[..., Any], recursive: bool = True, *, wrapping: bool = True) -> Callable[..., Any]:
        return run

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # what Python itself asks of a module
            raise AttributeError(name)
        if sys.modules.get(_COMPILER) is self:
            del sys.modules[_COMPILER]
        return getattr(importlib.import_module(_COMPILER), name)


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


class _FusedAttention(TorchFunctionMode):
    """Attention without the scores of all pairs in memory, as the kernels of every served device do it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.scaled_dot_product_attention:
            return torch.empty_like(args[0])
        return func(*args, **(kwargs or {}))
