"""A first-come gate: places are given out in the order in which they were asked for."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class NobodyUp(Exception):
    """Whoever gives places has been down for as long as one may wait for it."""


class Gate(Generic[T]):
    """Who waits for a place. The places are somebody else's: `take` marks a free one as taken, `put_back` undoes it."""

    def __init__(
        self,
        take: Callable[[], T | None],
        put_back: Callable[[T], None],
        seconds_down: Callable[[], float],
        wait_seconds: float,
    ) -> None:
        """`take` gives None while no place is free. `seconds_down`: since when there has been nobody to give one, or 0.

        While there is somebody, everybody waits for as long as it takes. Of the time without, each bears wait_seconds.
        """
        self._take = take
        self._put_back = put_back
        self._seconds_down = seconds_down
        self._wait_seconds = wait_seconds
        self._waiting: deque[asyncio.Future[T]] = deque()

    @property
    def n_waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._waiting)

    async def enter(self) -> T:
        """Wait for a place. Raises NobodyUp, and what `fail` was given.

        Whoever is cancelled with a place in hand passes it on.
        """
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self.offer()
        try:
            await self._patiently(waiter)
            return waiter.result()
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put_back(waiter.result())
                self.offer()
            raise
        finally:
            waiter.cancel()  # whoever has given up is passed over

    async def _patiently(self, waiter: "asyncio.Future[T]") -> None:
        begun = time.monotonic()
        while not waiter.done():
            without = min(self._seconds_down(), time.monotonic() - begun)
            if without >= self._wait_seconds:
                raise NobodyUp
            await asyncio.wait({waiter}, timeout=self._wait_seconds - without)

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
