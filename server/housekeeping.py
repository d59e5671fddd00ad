"""What a server does for memory from time to time: see that the shared one is there, free what dead owners left."""

import asyncio
import logging
from pathlib import Path

from server.metrics import Metrics
from server.requests.segments import Segments
from shm import OwnerError, SweepReport, sweep_in_parts
from tokenization.worker_memory import return_pages

SWEEP_SECONDS = 30.0
RETURN_SECONDS = 1.0
MOST_LINES = 10  # of one sweep, about entries that nobody of ours makes

log = logging.getLogger("pixelferry")


class PagesReturned:
    """Lets the C library return freed pages to the system when bodies are gone, in a thread.

    The pages of bodies that come in pieces lie among others that stay, so that without this as much would stay resident
    as was ever held.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def __call__(self) -> None:
        """Bodies fell. RETURN_SECONDS later those that fell with them are gone, too."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._later())

    async def _later(self) -> None:
        await asyncio.sleep(RETURN_SECONDS)
        self._task = None
        try:
            await asyncio.to_thread(return_pages)
        except RuntimeError as error:  # no thread can be started now
            log.warning("freed memory is not returned now: %s", error)


class Housekeeping:
    """Nothing that it meets ends the server: it says so, and tries again the next time."""

    def __init__(self, root: Path, segments: Segments, metrics: Metrics) -> None:
        self._root = root
        self._segments = segments
        self._metrics = metrics
        self._odd: frozenset[str] = frozenset()  # said already

    async def run(self) -> None:
        """At start, and every SWEEP_SECONDS: a server beside this one may be killed. Never returns."""
        while True:
            try:
                await self.once()
            except (OSError, RuntimeError) as error:  # no descriptor, memory or thread left now
                log.error("the shared memory could not be looked after now: %s", error)
            await asyncio.sleep(SWEEP_SECONDS)

    async def once(self) -> None:
        """Raises OSError, and RuntimeError where no thread can be started."""
        await self._segments.look_after()
        report = SweepReport()
        try:
            parts = sweep_in_parts(self._root)
            # One part at a time: a server that ends waits for the part that runs, and for no more.
            while (part := await asyncio.to_thread(next, parts, None)) is not None:
                report += part
        except OwnerError:
            return  # look_after() has said so, unless it came to be a moment ago
        if report.owners:
            self._metrics.swept(report.bytes)
            log.info("swept %d dead owners: %d segments, %d bytes", report.owners, report.segments, report.bytes)
        for name in sorted(frozenset(report.odd) - self._odd)[:MOST_LINES]:
            log.warning("%s is no owner file, though it is called so: it is left alone", name)
        self._odd = frozenset(report.odd)
