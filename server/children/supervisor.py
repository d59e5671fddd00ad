"""Keeps one child alive: starts it, talks with it, kills it when it hangs, starts it again."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import msgspec

from configs.serve import ServeConfig
from server.children.liveness import Liveness
from server.children.processes import END_SECONDS, Child, ChildRole, Ownership, died_of, launch
from server.children.stacks import stacks_of
from server.metrics import ChildSnapshot, ChildState, Metrics
from server.usage import ProcessUsage, usage_of
from shm import ChannelClosed, ChannelError, Ending, Loading, Owner

log = logging.getLogger("pixelferry")

LAST_WORDS_SECONDS = 1.0  # how long a child that closed its channel may take to end, and what it sent to be read
STABLE_SECONDS = 30.0  # a child that was ready for so long is started again without delay
MAX_BACKOFF_SECONDS = 5.0
WATCH_SECONDS = 0.25
RELAUNCH_SECONDS = 0.5  # after a start that the machine had no room for
CRASH_LOOP_STARTS = 3  # starts in a row that ended before the child was ready


class StartFailed(Exception):
    """A child ended before it was ready for the first time: the server cannot start."""


class SupervisedChild(ABC):
    """One child over all its incarnations. Who works with it adds what it is told, and what follows from its death.

    What it is told goes through `tell`, in that order; what it says comes to `handle`.
    """

    def __init__(
        self, role: ChildRole, start: msgspec.Struct, receives: Any, config: ServeConfig, owner: Owner, metrics: Metrics
    ) -> None:
        """start: its first message; receives: the union of what it says."""
        self.role = role
        self.name: str = role  # in the log
        self.child: Child | None = None  # the latest incarnation
        self.up = False  # this incarnation can take work
        self.crash_looping = False  # nobody is kept waiting for it any more
        self.ready = asyncio.Event()  # set for good once the first incarnation was ready
        self.liveness = Liveness(config)
        self.failures = 0  # incarnations in a row that were not ready for STABLE_SECONDS
        self._started: float | None = None  # the latest incarnation, by time.time()
        self.start = start
        self.inherits: tuple[int, ...] = ()  # descriptors that the next incarnation gets beside its own
        self.fellows: tuple[SupervisedChild, ...] = ()  # that wait for it, and so stand still where it hangs
        self._receives = receives | Loading | Ending
        self._config = config
        self._owner = owner
        self._metrics = metrics
        self._ready_since: float | None = None  # of this incarnation, though it may be down by now
        self._down_since = time.monotonic()
        self._failed_starts = 0  # incarnations in a row that ended before they were ready
        self._cpu_of_ended = 0.0  # seconds, of all incarnations that are reaped
        self._replacement: str | None = None  # why this incarnation is ended although it is well
        self._condemned = False  # this incarnation is dying or dead, or is killed next
        self._told: dict[int, str] = {}  # by return code: why it ends so before it is ready, in its own words

    # ---- for those who work with it

    @property
    def seconds_down(self) -> float:
        """Since when no incarnation has been ready for work; 0 while one is."""
        return 0.0 if self.up else time.monotonic() - self._down_since

    @property
    def usage(self) -> ProcessUsage:
        """What it takes of the machine now. The processor time is that of all its incarnations."""
        ended = ProcessUsage(cpu_seconds=self._cpu_of_ended)
        return ended + usage_of(self.child.pid) if self.child is not None and self.child.alive else ended

    @property
    def child_state(self) -> ChildState:
        """How it is now, in a word."""
        if self.up:
            return "up"
        if self.crash_looping:
            return "failing"
        begins = self.child is not None and self.child.alive and self._ready_since is None
        return "starting" if begins else "down"

    @property
    def snapshot(self) -> ChildSnapshot:
        return ChildSnapshot(role=self.role, state=self.child_state, started=self._started, usage=self.usage)

    def tell(self, message: msgspec.Struct, *, large: bool = False) -> None:
        """Send it after all that was told before. What a dead child was told is reported by on_reaped, not here."""
        self._outbox.put_nowait((message, large))

    # ---- what befalls it, on the event loop

    def on_started(self, child: Child) -> None:
        """A new incarnation runs; it is not ready yet."""
        self.on_unavailable()
        self.child, self._started = child, time.time()
        self._ready_since = self._replacement = None
        self._condemned = False
        self._told = {}
        self.liveness.begin(child.pid, time.monotonic())
        self._outbox: asyncio.Queue[tuple[msgspec.Struct, bool]] = asyncio.Queue()
        self._writing = asyncio.create_task(self._write(child, self._outbox))

    def on_message(self, message: Any) -> None:
        self.liveness.hear(message, time.monotonic())
        if isinstance(message, Ending):
            self._told[message.code] = message.why
        elif self._condemned and self._ready_since is None:
            return  # it has no work: all that it can say is that it is ready
        elif not isinstance(message, Loading):
            self.handle(message)

    def on_ready(self) -> None:
        """It can take work from now on."""
        self.up, self._ready_since, self._failed_starts = True, time.monotonic(), 0
        self.crash_looping = False
        self.liveness.ready = True
        self.ready.set()

    def on_unavailable(self) -> None:
        """It is dying or dead: it is given nothing more. Called as soon as anybody notices, perhaps twice.

        One that was not ready by then never is.
        """
        self._condemned = True
        if self.up:
            self.up, self._down_since = False, time.monotonic()

    def on_reaped(self) -> None:
        """It is reaped and everything it sent was handled: nothing of it runs any more."""
        self._writing.cancel()
        assert self.child is not None
        self._cpu_of_ended += self.child.last_usage.cpu_seconds
        if self._ready_since is None:
            self._failed_starts += 1
            self.crash_looping = self._failed_starts >= CRASH_LOOP_STARTS

    def end_in_words(self, code: int) -> tuple[str | None, str]:
        """(why it ended so before it was ready, where it said that; of what). code: its return code."""
        return self._told.get(code) if self._ready_since is None else None, died_of(code)

    # ---- what each kind of child adds

    @abstractmethod
    def handle(self, message: Any) -> None:
        """One of its messages. It calls on_ready() for the one that says so."""

    def on_unsendable(self, message: Any, error: ChannelError) -> None:
        """What it was to be told is longer than a frame may be."""
        raise error

    def replacement_reason(self) -> str | None:
        """Why one that keeps too much is to be replaced now, or None. It has no work then, and gets none any more."""
        return None

    def ends_with(self) -> "Sequence[asyncio.Future[Any]]":
        """What ends it, too, when it is done."""
        return ()

    async def end_others(self) -> None:
        """It is reaped: whatever ends with it is ended, before on_reaped()."""
        await asyncio.gather(*self.ends_with())

    # ---- its life

    def launch(self) -> Child:
        """Raises OSError while the machine has no room. The owner's name changes when its file was removed."""
        owned = Ownership(
            lock_fd=self._owner.fileno(), owner_name=self._owner.name, shm_root=self._owner.root, log=self._config.log
        )
        return launch(self.role, owned, self._receives, self.inherits)

    async def run(self) -> None:
        """Never returns. Raises StartFailed when the first incarnation ends before it is ready."""
        while True:
            try:
                child = self.launch()
            except OSError as error:  # no process, descriptor or memory left now
                await self.not_launched(error)
                continue
            self.on_started(child)
            self.tell(self.start)
            code = await self.attend(child)
            told, died = self.end_in_words(code)
            if not self.ready.is_set():
                raise StartFailed(told or f"the {self.role} could not start: {died}")
            if self._replacement is not None:
                log.info("%s process %d is replaced: %s", self.role, child.pid, self._replacement)
                self._metrics.children.renewal(self.role)
                continue
            stable = self._ready_since is not None and time.monotonic() - self._ready_since > STABLE_SECONDS
            self.failures = 0 if stable else self.failures + 1
            log.error("%s process %d ended (%s); starting another", self.name, child.pid, told or died)
            self._metrics.restart(self.role)
            await asyncio.sleep(backoff(self.failures))

    async def end(self, grace: float = END_SECONDS) -> None:
        """End the child, by force after `grace` seconds. run() must have been cancelled."""
        if self.child is not None:
            await self.child.end(grace)

    async def not_launched(self, error: OSError) -> None:
        """The machine has no room for a process: wait a while. Raises StartFailed at the server's start."""
        if not self.ready.is_set():
            raise StartFailed(f"the {self.role} could not start: {error.strerror}") from None
        self.failures += 1
        log.error("a %s cannot be started now (%s); it is tried again", self.role, error.strerror)
        await asyncio.sleep(max(backoff(self.failures), RELAUNCH_SECONDS))

    async def attend(self, child: Child) -> int:
        """To the end of one incarnation; its return code."""
        reading = asyncio.create_task(self._read(child))
        watching = asyncio.create_task(self._watch(child))
        ours = (reading, watching, self._writing)
        ends: set[asyncio.Future[Any]] = {child.exited, *ours, *self.ends_with()}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            self.on_unavailable()
            if reading.done() or self._writing.done():  # a process that ends closes its channel first: let it end
                await asyncio.wait({child.exited}, timeout=LAST_WORDS_SECONDS)
            child.kill()
            code = await asyncio.shield(child.exited)
            await asyncio.wait({reading}, timeout=LAST_WORDS_SECONDS)
            for task in ours:
                if task.done():
                    task.result()  # a defect of ours ends the server, it must not pass for a dead child
            await self.end_others()
            self.on_reaped()
            return code
        finally:
            for task in ours:
                task.cancel()
            if not child.alive:
                child.channel.close()

    async def _read(self, child: Child) -> None:
        try:
            while True:
                self.on_message(await child.channel.recv())
        except ChannelClosed:
            return
        except ChannelError as error:
            log.error("%s process %d sent what cannot be read: %s", self.name, child.pid, error)

    async def _write(self, child: Child, outbox: "asyncio.Queue[tuple[msgspec.Struct, bool]]") -> None:
        """The one task that sends: a client that leaves in the middle of a large frame must not tear it."""
        while True:
            message, large = await outbox.get()
            try:
                await child.channel.send(message, large=large)
            except ChannelClosed:
                return
            except ChannelError as error:
                self.on_unsendable(message, error)

    async def _watch(self, child: Child) -> None:
        """Return when the child counts as hung, or is to be replaced."""
        last = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            now = time.monotonic()
            if now - last > self._config.pulse_seconds / 2:
                self.liveness.excuse(now - last)
            last = now
            if why := self.liveness.hang_reason(now):
                await self._tell_hang(child, why)
                return
            if self.liveness.kept_bytes is not None and (why := self.replacement_reason()):
                self._replacement = why
                return

    async def _tell_hang(self, child: Child, why: str) -> None:
        """Say where it hangs while it can still be asked."""
        self.on_unavailable()
        self._metrics.children.hang(self.role)
        log.error("%s process %d hangs (%s) and is killed", self.name, child.pid, why)
        stacks = await stacks_of(child.pid)
        log.error("where %s process %d hangs", self.name, child.pid, extra={"stacks": stacks})
        for one in self.fellows:
            if one.child is not None and one.child.alive:
                stacks = await stacks_of(one.child.pid)
                log.error("where %s process %d is then", one.name, one.child.pid, extra={"stacks": stacks})


def backoff(failures: int) -> float:
    """Seconds before the next start: none after the first failure in a row, then doubling from half a second."""
    return 0.0 if failures <= 1 else min(MAX_BACKOFF_SECONDS, 0.25 * float(2 ** min(failures - 1, 10)))
