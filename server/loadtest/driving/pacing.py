"""When the next request is sent: at the times of an open loop, or by streams that each wait for their last answer."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter

import anyio

from server.loadtest.options import Options
from server.loadtest.results.measures import Record

# The number of a request, when it was due, whether it is measured, and what bounds how many leave; never raises.
Send = Callable[[int, float, bool, asyncio.Semaphore | None], Awaitable[Record]]


class Pacer:
    """Sends the requests of one step. What is not over at the end of the grace is cut off: it is `unfinished`."""

    def __init__(self, options: Options, send: Send, *, started: float, now: float) -> None:
        """started: zero of the run's clock by perf_counter; now: when the step begins, in seconds of the run."""
        self._options = options
        self._send = send
        self._started = started
        self._now = now
        self._tasks: set[asyncio.Future[Record]] = set()
        self.records: list[Record] = []  # of requests that are over

    async def open_loop(self, dues: Iterable[float]) -> None:
        """Send each request when it is due, whatever became of those before."""
        cap = self._options.max_in_flight
        room = asyncio.Semaphore(cap) if cap is not None else None
        for number, due in enumerate(dues):
            wait = self._started + self._now + due - perf_counter()
            if wait > 0:
                await asyncio.sleep(wait)
            self._start(number, self._now + due, due >= self._options.ramp, room)
            if wait <= 0:
                await asyncio.sleep(0)  # late: answers must be read all the same
        await self.finish(self._options.grace)

    async def closed_loop(self, streams: int) -> None:
        """So many streams, each of which sends its next request when it has the answer to its last one.

        They begin evenly within the ramp. A step without a ramp begins with all of them.
        """
        options, sent = self._options, 0

        async def stream(number: int) -> None:
            nonlocal sent
            due = self._now + options.ramp * number / streams
            await asyncio.sleep(max(0.0, self._started + due - perf_counter()))
            while options.requests is None or sent < options.requests:
                elapsed = due - self._now
                if options.seconds is not None and elapsed >= options.seconds:
                    return
                index, sent = sent, sent + 1
                record = await asyncio.shield(self._start(index, due, elapsed >= options.ramp))
                due = record.ended

        end = math.inf if options.seconds is None else options.seconds + options.grace
        with anyio.move_on_after(end):
            async with anyio.create_task_group() as group:
                for number in range(streams):
                    group.start_soon(stream, number)
        await self.finish(0.0)

    def _start(
        self, number: int, due: float, measured: bool, room: asyncio.Semaphore | None = None
    ) -> "asyncio.Future[Record]":
        async def sending() -> Record:
            record = await self._send(number, due, measured, room)
            self.records.append(record)
            return record

        task = asyncio.ensure_future(sending())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, grace: float) -> None:
        """Wait for all, and cut off those that take too long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
