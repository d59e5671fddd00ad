"""A simulated clock: where an event loop has nothing to do, its time goes on to the next timer."""

import asyncio
import importlib
import pkgutil
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any, TypeVar

import pytest

import server.loadtest

T = TypeVar("T")
SETTLING = 0.001  # real seconds in which bytes on their way to a socket of this process arrive before time goes on


class _Selector(selectors.DefaultSelector):
    """Files are asked for real; a wait for them moves `now` in place of the caller."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        found = super().select(0) or super().select(SETTLING)
        if not found:
            self.now += timeout
        return found


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run_simulated(main: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run: both ends of each connection live in this loop, and so does the load test's own clock."""
    loop = _Loop()
    with pytest.MonkeyPatch.context() as patch:
        for module in _modules_with_a_clock().values():
            patch.setattr(module, "perf_counter", loop.time)
        try:
            asyncio.set_event_loop(loop)
            return loop.run_until_complete(main)
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()


def _modules_with_a_clock() -> Mapping[str, Any]:
    names = [one.name for one in pkgutil.walk_packages(server.loadtest.__path__, "server.loadtest.")]
    modules = {name: importlib.import_module(name) for name in names if not name.endswith("__main__")}
    return {name: module for name, module in modules.items() if hasattr(module, "perf_counter")}
