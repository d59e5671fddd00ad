"""Small tasks that outlive whoever started them, none of which may fail unseen."""

import asyncio
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks that nobody awaits. The first one that raises ends the server, through `failed`."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Future[Any]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def spawn(self, work: "Coroutine[Any, Any, Any] | asyncio.Future[Any]") -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    async def idle(self) -> None:
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    def _done(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)
