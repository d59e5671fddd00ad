"""When the next request is sent: at the times of an open loop, or by streams that each wait for their last answer."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

from server.loadtest.results.record import Record

Send = Callable[[int, float, bool], Awaitable[Record]]  # number of the request, when it was due, whether it is measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When a step ends."""

    count: int | None = None  # requests
    seconds: float | None = None  # no request is sent later
    grace: float = 60.0  # seconds that answers may take after the last one was sent
    ramp: float = 0.0  # seconds in which the load rises; their requests are not measured


class Tasks:
    """Requests under way. What is not over at the end of the grace is cut off; its record says `unfinished`."""

    def __init__(self, on_record: Callable[[Record], None]) -> None:
        self._on_record = on_record
        self._tasks: set[asyncio.Task[Record]] = set()

    def add(self, sending: Awaitable[Record]) -> "asyncio.Task[Record]":
        task = asyncio.ensure_future(sending)
        assert isinstance(task, asyncio.Task)
        self._tasks.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: "asyncio.Task[Record]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():  # cancelled: it had not begun
            self._on_record(task.result())

    async def finish(self, grace: float) -> None:
        """Wait for all, and cut off those that take too long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=grace)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)


async def open_loop(
    dues: Iterable[float], send: Send, tasks: Tasks, limits: Limits, *, started: float, now: float, cap: int | None
) -> None:
    """Send each request when it is due, whatever became of those before; of at most `cap` at once.

    started: zero of the run's clock by perf_counter; now: when the step began, in seconds of the run.
    """
    room = asyncio.Semaphore(cap) if cap is not None else None

    async def one(number: int, due: float, measured: bool) -> Record:
        if room is None:
            return await send(number, due, measured)
        async with room:
            return await send(number, due, measured)

    for number, due in enumerate(dues):
        wait = started + now + due - perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        tasks.add(one(number, now + due, due >= limits.ramp))
        if wait <= 0:
            await asyncio.sleep(0)  # late: answers must be read all the same
    await tasks.finish(limits.grace)


async def closed_loop(streams: int, send: Send, tasks: Tasks, limits: Limits, *, started: float, now: float) -> None:
    """So many streams, each of which sends its next request when it has the answer to its last one.

    They begin evenly within the ramp. A step without a ramp begins with all of them.
    """
    sent = 0

    async def stream(number: int) -> None:
        nonlocal sent
        due = now + (limits.ramp * number / streams)
        await asyncio.sleep(max(0.0, started + due - perf_counter()))
        while limits.count is None or sent < limits.count:
            if limits.seconds is not None and due - now >= limits.seconds:
                return
            index, sent = sent, sent + 1
            record = await asyncio.shield(tasks.add(send(index, due, due - now >= limits.ramp)))
            due = record.ended

    running = [asyncio.ensure_future(stream(number)) for number in range(streams)]
    try:
        await asyncio.wait(running, timeout=None if limits.seconds is None else limits.seconds + limits.grace)
    finally:
        for task in running:
            task.cancel()
        await tasks.finish(0.0 if limits.seconds is not None else limits.grace)
