"""Kernels of captured graphs and of their updates, as functions that the stub of the driver calls when they are due."""

import ctypes
import traceback
from collections.abc import Callable
from functools import cache

import torch

from tests.npu.stub.counts import stub

_KERNELS: list[Callable[[], object]] = []  # by number, for as long as the process lives


def defers() -> bool:
    """Whether the last launch computes later: it went into a graph, into the update of one, or behind a replay."""
    return bool(_connected().stub_defers())


def defer(kernel: Callable[[], object]) -> None:
    """What the last launch computes, when it is due. It must hold addresses, not tensors: a device does no more."""
    _KERNELS.append(kernel)
    _connected().stub_kernel(ctypes.c_long(len(_KERNELS) - 1))


def go_on() -> None:
    """The device gets on with all that it was given, as it does while the host waits for another process.

    The stub's device is no thread: it works when the host calls it. Another rank may wait for it in a collective.
    """
    _connected().stub_go_on()


@cache
def _connected() -> ctypes.CDLL:
    library = stub()
    library.stub_python(_RUN)
    return library


def _run(number: int) -> int:
    """1 where the kernel failed: the driver then says so to whoever waits."""
    try:
        with torch.inference_mode():
            _KERNELS[number]()
    except Exception:  # noqa: BLE001 - nothing can be raised through C
        traceback.print_exc()
        return 1
    return 0


_RUN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_long)(_run)  # lives as long as the driver may call it
