"""Who may come in: how many requests are unfinished, and whether the server takes new ones."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from server.requests.refusal import Refusal, overloaded, unavailable


class Admission:
    """Counts requests from their parsed body to their end. `why_not` says why none is taken now, or None."""

    def __init__(self, max_requests: int, why_not: Callable[[], Refusal | None]) -> None:
        self._max = max_requests
        self._why_not = why_not
        self._tasks: set[asyncio.Task[object]] = set()
        self.draining = False

    @property
    def n_active(self) -> int:
        return len(self._tasks)

    def refusal(self) -> Refusal | None:
        """Why a request that comes now is not taken, or None. Asked before its body is read, too."""
        if self.draining:
            return stopping()
        error = self._why_not()
        if error is None and len(self._tasks) >= self._max:
            error = overloaded(f"this server takes {self._max} requests at once (--max-requests)", "queue_full")
        return error

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Count the running task as one request. Raises Refusal when it is not taken."""
        if (error := self.refusal()) is not None:
            raise error
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            yield
        finally:
            self._tasks.discard(task)

    async def drain(self, seconds: float) -> None:
        """Take nobody new, give those inside `seconds` to end, then end them."""
        self.draining = True
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=seconds)
        await self.end()

    async def end(self, seconds: float | None = None) -> None:
        """End those inside, and give them `seconds` to let go of what they have, or as long as it takes."""
        left = set(self._tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=seconds)


def stopping() -> Refusal:
    return unavailable("the server is stopping", "stopping", retry_after=5)
