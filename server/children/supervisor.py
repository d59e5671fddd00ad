"""Keeps one child alive: starts it, listens to it, kills it when it hangs, starts it again."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from server.children.kernel_books import KernelBooks
from server.children.load_watch import LoadWatch
from server.children.processes import END_SECONDS, Child, Role, died_of
from server.children.stacks import stacks_of
from shm import ChannelClosed, ChannelError, Ending, Loading

log = logging.getLogger("pixelferry")

LAST_WORDS_SECONDS = 1.0  # how long a child that closed its channel may take to end, and what it sent to be read
STABLE_SECONDS = 30.0  # a child that was ready for so long is started again without delay
MAX_BACKOFF_SECONDS = 5.0
WATCH_SECONDS = 0.25
RELAUNCH_SECONDS = 0.5  # after a start that the machine had no room for
CRASH_LOOP_STARTS = 3  # starts in a row that ended before the child was ready: nobody is kept waiting any more


class StartFailed(Exception):
    """A child ended before it was ready for the first time: the server cannot start."""


class ChildObserver(Protocol):
    """What a supervisor tells about its child to those who work with it. All are called on the event loop."""

    def on_started(self, child: Child) -> None:
        """A new incarnation runs; it is not ready yet."""

    def on_message(self, message: Any) -> bool:
        """One message that is not Loading. True: the child says with it that it is ready for work."""

    def on_unavailable(self) -> None:
        """The child is dying or dead: give it nothing more. Called as soon as anybody notices, perhaps twice."""

    def on_reaped(self) -> None:
        """The child is reaped and everything it sent was delivered: nothing of it runs any more."""

    def hang_reason(self, silent: float) -> str | None:
        """Why the child counts as hung although it lives, or None. It was last heard `silent` seconds ago."""

    def renewal_reason(self) -> str | None:
        """Why a child that is well is to be replaced now, or None. It has no work then, and is given none any more."""


class ChildCounter(Protocol):
    """Who counts what befalls children, by their role."""

    def restart(self, role: str) -> None:
        """One ended by itself, or hung, and is started again."""

    def hang(self, role: str) -> None:
        """One hung and is killed."""

    def renewal(self, role: str) -> None:
        """One was replaced although it was well."""


class ChildState:
    """What an observer keeps of its child: the latest incarnation, whether it can take work, whether any ever will."""

    def __init__(self) -> None:
        self.child: Child | None = None
        self._ready = False
        self._was_ready = False  # this incarnation, though it may be down by now
        self._failures = 0  # incarnations in a row that ended before they were ready
        self._down_since = time.monotonic()

    @property
    def up(self) -> bool:
        return self._ready and self.child is not None and self.child.alive

    @property
    def crash_looping(self) -> bool:
        return self._failures >= CRASH_LOOP_STARTS

    @property
    def seconds_down(self) -> float:
        """Since when no incarnation has been ready for work; 0 while one is."""
        return 0.0 if self._ready else time.monotonic() - self._down_since

    def start(self, child: Child) -> None:
        self.down()
        self.child, self._was_ready = child, False

    def ready(self) -> None:
        self._ready, self._was_ready, self._failures = True, True, 0

    def down(self) -> None:
        if self._ready:
            self._ready, self._down_since = False, time.monotonic()

    def lost(self) -> None:
        """It is reaped. To be called once for each incarnation."""
        if not self._was_ready:
            self._failures += 1


class Supervisor:
    def __init__(
        self,
        role: Role,
        launch: Callable[[], Child],
        start: msgspec.Struct,
        observer: ChildObserver,
        *,
        pulse_seconds: float,
        load_seconds: float,
        counter: ChildCounter,
    ) -> None:
        self.role = role
        self._launch = launch
        self._start = start
        self._observer = observer
        self._pulse_seconds = pulse_seconds
        self._load_seconds = load_seconds
        self._counter = counter
        self.child: Child | None = None
        self.ready = asyncio.Event()  # set for good once the first incarnation was ready
        self.failures = 0  # incarnations in a row that were not ready for STABLE_SECONDS
        self._heard = 0.0
        self._ready_since: float | None = None
        self._renewal: str | None = None  # why this incarnation was ended although it was well
        self._told: dict[int, str] = {}  # by return code: why it ends so before it is ready, in its own words

    async def run(self) -> None:
        """Never returns. Raises StartFailed when the first incarnation ends before it is ready."""
        while True:
            try:
                self.child = self._launch()
            except OSError as error:  # no process, descriptor or memory left now
                await self._not_launched(error)
                continue
            self._observer.on_started(self.child)
            code = await self._attend(self.child)
            if not self.ready.is_set():
                raise StartFailed(self._why_ended(code) or f"the {self.role} could not start: {died_of(code)}")
            if self._renewal is not None:
                log.info("%s process %d is replaced: %s", self.role, self.child.pid, self._renewal)
                self._counter.renewal(self.role)
                continue
            self.failures = 0 if self._seconds_ready() > STABLE_SECONDS else self.failures + 1
            why = self._why_ended(code) or died_of(code)
            log.error("%s process %d ended (%s); starting another", self.role, self.child.pid, why)
            self._counter.restart(self.role)
            await asyncio.sleep(backoff(self.failures))

    async def _not_launched(self, error: OSError) -> None:
        if not self.ready.is_set():
            raise StartFailed(f"the {self.role} could not start: {error.strerror}") from None
        self.failures += 1
        log.error("a %s cannot be started now (%s); it is tried again", self.role, error.strerror)
        await asyncio.sleep(max(backoff(self.failures), RELAUNCH_SECONDS))

    async def end(self, grace: float = END_SECONDS) -> None:
        """End the child, by force after `grace` seconds. run() must have been cancelled."""
        if self.child is not None:
            await self.child.end(grace)

    async def _attend(self, child: Child) -> int:
        self._heard, self._ready_since, self._renewal, self._told = time.monotonic(), None, None, {}
        books = KernelBooks(child.pid, self._heard)
        loading = LoadWatch(books, self._heard, pulse_seconds=self._pulse_seconds, load_seconds=self._load_seconds)
        reading = asyncio.create_task(self._read(child, loading))
        watching = asyncio.create_task(self._watch(child, loading, books))
        try:
            ends: set[asyncio.Future[Any]] = {child.exited, reading, watching}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self._observer.on_unavailable()
            if reading.done():  # a process that ends closes its channel first: let it end with its own exit code
                await asyncio.wait({child.exited}, timeout=LAST_WORDS_SECONDS)
            child.kill()
            code = await asyncio.shield(child.exited)
            await asyncio.wait({reading}, timeout=LAST_WORDS_SECONDS)
            for task in (reading, watching):
                if task.done():
                    task.result()  # a defect in the observer ends the server, it must not pass for a dead child
            self._observer.on_reaped()
            return code
        finally:
            reading.cancel()
            watching.cancel()
            if not child.alive:
                child.channel.close()

    def _why_ended(self, code: int) -> str | None:
        return self._told.get(code) if self._ready_since is None else None

    def _seconds_ready(self) -> float:
        return 0.0 if self._ready_since is None else time.monotonic() - self._ready_since

    async def _read(self, child: Child, loading: LoadWatch) -> None:
        try:
            await child.channel.send(self._start)
            while True:
                message = await child.channel.recv()
                self._heard = time.monotonic()
                if isinstance(message, Loading):
                    loading.heard(message, self._heard)
                elif isinstance(message, Ending):
                    self._told[message.code] = message.why
                elif self._observer.on_message(message):
                    self._ready_since = self._heard
                    self.ready.set()
        except ChannelClosed:
            return
        except ChannelError as error:
            log.error("%s process %d sent what cannot be read: %s", self.role, child.pid, error)

    async def _watch(self, child: Child, loading: LoadWatch, books: KernelBooks) -> None:
        """Return when the child counts as hung, or is to be replaced."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            if now - last > self._pulse_seconds / 2:
                # This process itself was stopped or starved: what was sent meanwhile is unread.
                self._heard = now
                loading.excuse(now - last)
            last = now
            why = loading.hang_reason(now) if self._ready_since is None else self._why_hung(now, books)
            if why:
                await self._tell_hang(child, why)
                return
            if self._ready_since is not None and (renewal := self._observer.renewal_reason()):
                self._renewal = renewal
                return

    def _why_hung(self, now: float, books: KernelBooks) -> str | None:
        """One call into C may hold the interpreter, and with it the pulse: then the time of the job is what bounds it.

        A child that is stopped, or waits for itself, does nothing that the kernel would count.
        """
        idle = now - max(self._heard, books.last_work(now))
        if idle > self._pulse_seconds:
            return f"silent for {idle:.1f} s"
        return self._observer.hang_reason(now - self._heard)

    async def _tell_hang(self, child: Child, why: str) -> None:
        """Say where it hangs while it can still be asked."""
        self._observer.on_unavailable()
        self._counter.hang(self.role)
        log.error("%s process %d hangs (%s) and is killed", self.role, child.pid, why)
        stacks = await stacks_of(child.pid)
        log.error("where %s process %d hangs", self.role, child.pid, extra={"stacks": stacks})


def backoff(failures: int) -> float:
    """Seconds before the next start: none after the first failure in a row, then doubling from half a second."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_SECONDS, 0.25 * float(2 ** min(failures - 1, 10)))
