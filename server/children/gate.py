"""A gate to places of which there are few: who waits for one, and for how long."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

A = TypeVar("A")
T = TypeVar("T")


class NobodyUp(Exception):
    """Whoever gives places has been down for as long as one may wait for it."""


class Gate(Generic[A, T]):
    """Who waits for a place. The places are somebody else's, who also says whose turn it is."""

    def __init__(
        self,
        take: Callable[[Sequence[A]], tuple[A, T] | None],
        put_back: Callable[[T], None],
        seconds_down: Callable[[A], float],
        wait_seconds: float,
    ) -> None:
        """`take` marks a free place as taken for one of those who wait, who stand in the order in which they came.

        It gives None while no place is free, and `put_back` undoes it. `seconds_down`: since when there has been nobody
        to give one to such, or 0. While there is somebody, everybody waits for as long as it takes. Of the time
        without, each bears wait_seconds.
        """
        self._take = take
        self._put_back = put_back
        self._seconds_down = seconds_down
        self._wait_seconds = wait_seconds
        self._waiting: list[tuple[A, asyncio.Future[T]]] = []

    @property
    def n_waiting(self) -> int:
        return len(self.waiting)

    @property
    def waiting(self) -> list[A]:
        return [asking for asking, waiter in self._waiting if not waiter.done()]

    async def enter(self, asking: A) -> T:
        """Wait for a place. Raises NobodyUp, and what `fail` was given. `asking` is an object of its own.

        Whoever is cancelled with a place in hand passes it on.
        """
        waiter: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append((asking, waiter))
        self.offer()
        try:
            await self._patiently(asking, waiter)
            return waiter.result()
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._put_back(waiter.result())
                self.offer()
            raise
        finally:
            waiter.cancel()  # whoever has given up is passed over

    async def _patiently(self, asking: A, waiter: "asyncio.Future[T]") -> None:
        begun = time.monotonic()
        while not waiter.done():
            without = min(self._seconds_down(asking), time.monotonic() - begun)
            if without >= self._wait_seconds:
                raise NobodyUp
            await asyncio.wait({waiter}, timeout=self._wait_seconds - without)

    def offer(self) -> None:
        """Give free places to those who wait. To be called whenever one may have become free."""
        while True:
            self._waiting = [(asking, waiter) for asking, waiter in self._waiting if not waiter.done()]
            found = self._take(self.waiting) if self._waiting else None
            if found is None:
                return
            chosen, place = found
            next(waiter for asking, waiter in self._waiting if asking is chosen).set_result(place)

    def fail(self, error: Exception, whom: Callable[[A], bool]) -> None:
        """No place will be free again for such: those who wait get `error`."""
        for asking, waiter in self._waiting:
            if not waiter.done() and whom(asking):
                waiter.set_exception(error)
