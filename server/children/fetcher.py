"""The process that fetches media by URL, as the server sees it: what is being fetched, and the line of what waits."""

import asyncio
import itertools
import time
from collections import Counter
from dataclasses import dataclass, field

from configs.serve import ServeConfig
from configs.version import version
from model.engine.scheduling.fair_shares import FairQueue, Holdings
from server.children.replies import Replies
from server.children.supervisor import SupervisedChild
from server.fetching.messages import (
    CancelFetch,
    Fetch,
    FetchedPiece,
    FetchEnded,
    FetcherPulse,
    FetcherReady,
    FromFetcher,
    StartFetcher,
)
from server.metrics import Metrics
from shm import Owner

PATIENCE_SECONDS = 1.0  # that a job waits for a place within its client's share before another's fetch ends for it
LOOK_SECONDS = 0.25  # between two looks at the jobs that wait


class FetcherDied(Exception):
    """The process ended while it fetched, or cannot be started any more."""


class FetchGaveWay(Exception):
    """Its client had more places than its share, and others asked for theirs."""


@dataclass(eq=False, kw_only=True)
class FetchJob(Replies[FetchedPiece | FetchEnded]):
    """One medium, from its place in the line to the fetcher's last word on it.

    `next` raises FetcherDied and FetchGaveWay.
    """

    client: str
    expected: float = 1.0  # seconds; nobody knows
    came: float = field(default_factory=time.monotonic, init=False)
    has_turn: bool = field(default=False, init=False)
    begun: float | None = field(default=None, init=False)  # when the fetcher was told
    gives_way: bool = field(default=False, init=False)  # its cancel was sent


class Fetcher(SupervisedChild):
    """So many media at once in all and of one client; whose turn it is among clients says FairQueue.

    Origins may take their time, so that a few clients could hold all places for as long as a fetch may last: the
    longest fetch of a client that has more than its share of places ends for one that has less and waits.
    """

    def __init__(self, config: ServeConfig, owner: Owner, metrics: Metrics) -> None:
        self.limits = config.fetch
        start = StartFetcher(config=config.fetch, user_agent=f"pixelferry/{version()}")
        super().__init__("fetcher", start, FromFetcher, config, owner, metrics)
        self.max_file_bytes = config.media.max_file_bytes
        self._line: FairQueue[FetchJob] = FairQueue(small_first=False)
        self._running: dict[str, FetchJob] = {}
        self._places: Holdings[str] = Holdings(config.fetch.at_once)  # of these
        self._numbers = itertools.count()
        self._look: asyncio.TimerHandle | None = None  # the next one, while jobs wait

    @property
    def n_waiting(self) -> int:
        return len(self._line.waiting)

    async def begin(self, url: str, client: str) -> FetchJob:
        """Wait for its turn and ask for it. The caller must read it to its end, or cancel() it.

        Raises NobodyUp and FetcherDied.
        """
        job = FetchJob(str(next(self._numbers)), client=client)
        self._line.join(job)
        self._dispatch()
        self._look_soon()
        try:
            await job.wait_for_turn(self, self._config.wait_seconds)
        except BaseException:  # an interrupt too: who has gone must not stay in line, nor keep a turn
            self.cancel(job)
            raise
        job.begun = time.monotonic()
        self.tell(Fetch(request_id=job.request_id, url=url, max_bytes=self.max_file_bytes))
        return job

    def cancel(self, job: FetchJob) -> None:
        """Nobody wants it any more. `job.ended` says when the fetcher has let go of it."""
        if job.ended.is_set():
            return
        if not job.has_turn:
            self._line.done(job, None)
            job.end()
        elif job.begun is None:
            self._over(job)
            self._dispatch()
        else:
            self.tell(CancelFetch(request_id=job.request_id))

    def handle(self, message: FromFetcher) -> None:
        match message:
            case FetcherReady():
                self.on_ready()
                self._dispatch()
            case FetcherPulse():
                pass  # its Liveness has heard it
            case FetchedPiece() | FetchEnded():
                job = self._running[message.request_id]  # it answers what it was asked, until its last word
                gave_way = job.gives_way and isinstance(message, FetchEnded) and message.outcome == "cancelled"
                if not gave_way:
                    job.put(message)
                if isinstance(message, FetchEnded):
                    self._over(job, FetchGaveWay() if gave_way else None)
                    self._dispatch()

    def on_reaped(self) -> None:
        super().on_reaped()
        for job in tuple(self._running.values()):
            self._over(job, FetcherDied())
        for job in self._line.waiting:  # when it cannot be started any more, nobody is kept waiting
            job.wake()

    def may_begin(self, job: FetchJob) -> bool:
        if job.ended.is_set() or (not job.has_turn and self.crash_looping):
            raise FetcherDied
        return job.has_turn

    def seconds_down_for(self, job: FetchJob) -> float:
        return self.seconds_down

    def _dispatch(self) -> None:
        if not self.up or not self._places.room(1):
            return
        share = self._share()
        while self._places.room(1):
            job = self._line.next(lambda one: self._may_have_one(one) and self._is_within(one, share))
            job = job or self._line.next(self._may_have_one)
            if job is None:
                return
            job.has_turn = True
            self._running[job.request_id] = job
            self._places.take(job.client, 1)
            job.wake()

    def _may_have_one(self, job: FetchJob) -> bool:
        return self._places[job.client] < self.limits.client_at_once

    def _share(self) -> float:
        """Places of each client whose media are fetched, or wait for it: one at least."""
        clients = {job.client for job in (*self._running.values(), *self._line.waiting)}
        return max(1.0, self._places.capacity / max(1, len(clients)))

    def _is_within(self, job: FetchJob, share: float) -> bool:
        return self._places[job.client] + 1 <= share

    def _look_soon(self) -> None:
        if self._look is None and self._line.waiting:
            self._look = asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_at_waiting)

    def _look_at_waiting(self) -> None:
        self._look = None
        if not self._places.room(1):
            self._make_room(time.monotonic() - PATIENCE_SECONDS)
        self._look_soon()

    def _make_room(self, since: float) -> None:
        """For jobs that have waited since before `since`: one fetch ends for each that is within its client's share.

        Places whose cancel was sent count as free.
        """
        share, lacking = self._share(), Counter[str]()
        for job in self._line.waiting:
            if job.came <= since and self._places[job.client] + lacking[job.client] + 1 <= share:
                lacking[job.client] += 1
        n = lacking.total() - sum(job.gives_way for job in self._running.values())
        while n > 0 and (longest := self._longest_beyond(share)) is not None:
            longest.gives_way = True
            self._metrics.gave_way("fetches")
            self.tell(CancelFetch(request_id=longest.request_id))
            n -= 1

    def _longest_beyond(self, share: float) -> FetchJob | None:
        """The longest fetch of the client that would still hold most places, if these are more than its share."""
        staying = [job for job in self._running.values() if not job.gives_way]
        held = Counter(job.client for job in staying)
        begun = [job for job in staying if job.begun is not None and held[job.client] > share]
        return min(begun, key=lambda job: (-held[job.client], job.begun or 0.0), default=None)

    def _over(self, job: FetchJob, failure: FetcherDied | FetchGaveWay | None = None) -> None:
        del self._running[job.request_id]
        self._places.give(job.client, 1)
        self._line.done(job, 0.0 if job.begun is None else time.monotonic() - job.begun)
        job.end(failure)
