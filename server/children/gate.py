"""A first-come gate: places are given out in the order in which they were asked for."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Gate(Generic[T]):
    """Who waits for a place. The places are somebody else's: `take` marks a free one as taken, `put_back` undoes it."""

    def __init__(self, take: Callable[[], T | None], put_back: Callable[[T], None]) -> None:
        """`take` gives None while no place is free."""
        self._take = take
        self._put_back = put_back
        self._waiting: deque[asyncio.Future[T]] = deque()

    @property
    def n_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    async def enter(self) -> T:
        """Wait for a place. Raises what `fail` was given. Whoever is cancelled with a place in hand passes it on."""
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.offer()
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put_back(waiter.result())
                self.offer()
            raise

    def offer(self) -> None:
        """Give free places to those who wait. To be called whenever one may have become free."""
        while self._waiting:
            if self._waiting[0].done():  # it was cancelled
                self._waiting.popleft()
                continue
            place = self._take()
            if place is None:
                return
            self._waiting.popleft().set_result(place)

    def fail(self, error: Exception) -> None:
        """No place will be free again: everybody who waits gets `error`."""
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            if not waiter.done():
                waiter.set_exception(error)
