"""The process that fetches media by URL, as the server sees it: what is being fetched, and the line of what waits."""

import itertools
import time
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


class FetcherDied(Exception):
    """The process ended while it fetched, or cannot be started any more."""


@dataclass(eq=False, kw_only=True)
class FetchJob(Replies[FetchedPiece | FetchEnded]):
    """One medium, from its place in the line to the fetcher's last word on it. `next` raises FetcherDied."""

    client: str
    expected: float = 1.0  # seconds; nobody knows
    has_turn: bool = field(default=False, init=False)
    begun: float | None = field(default=None, init=False)  # when the fetcher was told


class Fetcher(SupervisedChild):
    """So many media at once in all and of one client; whose turn it is among clients says FairQueue."""

    def __init__(self, config: ServeConfig, owner: Owner, metrics: Metrics) -> None:
        self.limits = config.fetch
        start = StartFetcher(config=config.fetch, user_agent=f"pixelferry/{version()}")
        super().__init__("fetcher", start, FromFetcher, config, owner, metrics)
        self.max_file_bytes = config.media.max_file_bytes
        self._line: FairQueue[FetchJob] = FairQueue(small_first=False)
        self._running: dict[str, FetchJob] = {}
        self._places: Holdings[str] = Holdings(config.fetch.at_once)  # of these
        self._numbers = itertools.count()

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
                job.put(message)
                if isinstance(message, FetchEnded):
                    self._over(job)
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
        while self.up and self._places.room(1):
            job = self._line.next(lambda one: self._places[one.client] < self.limits.client_at_once)
            if job is None:
                return
            job.has_turn = True
            self._running[job.request_id] = job
            self._places.take(job.client, 1)
            job.wake()

    def _over(self, job: FetchJob, failure: FetcherDied | None = None) -> None:
        del self._running[job.request_id]
        self._places.give(job.client, 1)
        self._line.done(job, 0.0 if job.begun is None else time.monotonic() - job.begun)
        job.end(failure)
