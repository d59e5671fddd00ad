"""The tokenizer workers: what each is doing, and the line of jobs that wait for a free one.

A job from the request to the socket and back: `WorkerPool.begin` puts it into the line; `dispatch` gives it to a free
`Worker`, whose turn it is says fair_shares.py; `begin` tells that worker the message (supervisor.py writes it to the
socket). What the worker says comes to `Worker.handle` and is read by the request from the job itself. A job whose
worker dies is tried again by server/requests/service.py:RequestService._prepare.
"""

import logging
import os
import time
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from msgspec.structs import replace

from configs.serve import ServeConfig
from model.engine.scheduling.fair_shares import FairQueue
from server.children.fetcher import Fetcher
from server.children.liveness import JobCost, cost_of
from server.children.processes import Child, ChildRole
from server.children.replies import Replies
from server.children.supervisor import SupervisedChild
from server.metrics import Metrics
from shm import ChannelError, Owner
from tokenization.messages import (
    Cancel,
    Compiled,
    Drawn,
    FromWorker,
    Job,
    Lane,
    Leases,
    Measured,
    Prepared,
    PrepareFailed,
    StartWorker,
    WorkerGrown,
    WorkerPulse,
    WorkerReady,
)

log = logging.getLogger("pixelferry")

REPLACE_SECONDS = 10.0  # a replacement that takes longer counts as a worker that is down
LARGE = 1 << 20  # characters of a job from which on it is sent beside the loop's other work

WorkerState = Literal["starting", "free", "busy", "replacing", "down"]
WorkerReply = Measured | Prepared | Drawn | Compiled | PrepareFailed


class WorkerDied(Exception):
    """The worker ended in mid-job. It is reaped: nothing writes to the job's leases any more."""

    def __init__(self, exceeded: float | None = None, param: str | None = None) -> None:
        """exceeded: the seconds that the job might take, in all or in one call, where it was killed for them.

        param: the field of the medium that it was at then, where there was only one.
        """
        super().__init__()
        self.exceeded = exceeded
        self.param = param


@dataclass(eq=False, kw_only=True)
class WorkerJob(Replies[WorkerReply]):
    """One chat, text or drawing, from its place in the line to its worker's last word. `next` raises WorkerDied."""

    client: str  # whose share of the workers' time it takes
    cost: JobCost
    expected: float  # seconds
    worker: "Worker | None" = None  # from its turn on
    param: str | None = None  # of its medium, once that alone is left to do
    begun: float | None = None  # when it was told to its worker


class Worker(SupervisedChild):
    """One place for a worker process, over all its incarnations, and the one job that it has.

    starting   its process is not ready
    free       it takes a job
    busy       it has one
    replacing  it keeps too much memory: it gets no further job, ends between two, and the next one is not ready yet
    down       its process is dying or dead
    """

    def __init__(
        self, role: ChildRole, start: StartWorker, pool: "WorkerPool", config: ServeConfig, owner: Owner,
        metrics: Metrics,
    ) -> None:  # fmt: skip
        super().__init__(role, start, FromWorker, config, owner, metrics)
        self._lane = start.lane
        self._pool = pool
        self.state: WorkerState = "down"
        self.job: WorkerJob | None = None

    @property
    def serves(self) -> bool:
        """Whether it takes jobs, now or after the one it has."""
        return self.state in ("free", "busy")

    @property
    def being_replaced(self) -> bool:
        """Whether it is away for a moment because it kept too much memory: who comes now waits for the next one."""
        return self.state == "replacing" and not self.up and self.seconds_down < REPLACE_SECONDS

    def takes(self, job: WorkerJob) -> bool:
        return self._lane in ("media", job.cost.lane)

    def takes_beside_forms(self, job: WorkerJob) -> bool:
        """While as many compile a form as may."""
        return self.takes(job) and not job.cost.compiles

    def on_started(self, child: Child) -> None:
        super().on_started(child)
        if self.state != "replacing":
            self.state = "starting"

    def handle(self, message: FromWorker) -> None:
        match message:
            case WorkerReady():
                self.state = "free"
                self.on_ready()
                self._pool.dispatch()
            case WorkerGrown():
                self.replacement_reason()  # it gets no further job from now on, if others serve
            case WorkerPulse():
                pass  # its Liveness has heard it
            case _ if self.job is None or self.job.request_id != message.request_id:
                log.error("a worker answered a request that it does not have")
            case Measured():
                self.job.param = message.params[0] if len(set(message.params)) == 1 else None
                self.job.put(message)
            case _:
                self.job.put(message)
                self._pool.over(self)
                self._pool.dispatch()

    def on_unsendable(self, message: Job | Leases | Cancel, error: ChannelError) -> None:
        """The chat is longer than a frame may be."""
        self.handle(PrepareFailed(request_id=message.request_id, kind="bad_request", message=str(error)))

    def replacement_reason(self) -> str | None:
        """One that is alone is replaced all the same: chats wait for the moment."""
        kept = self.liveness.kept_bytes
        others = (worker for worker in self._pool.all if worker is not self)  # one is replaced at a time
        if kept is not None and self.serves and all(worker.serves for worker in others):
            self.state = "replacing"
        if kept is None or self.state != "replacing" or self.job is not None:
            return None
        self._replacement = f"it keeps {kept >> 20} MiB of earlier jobs"
        return self._replacement

    def on_unavailable(self) -> None:
        super().on_unavailable()
        if self._replacement is None:
            self.state = "down"

    def on_reaped(self) -> None:
        super().on_reaped()
        if self.job is not None:
            self._pool.over(self, WorkerDied(self.liveness.exceeded, self.job.param))
        self._pool.look_again()


class WorkerPool:
    """All workers: `slots` take every job, `text` takes texts alone, which so never wait for a medium.

    `picture` takes chats whose media are pictures while all others are busy, and hands those back that are not short:
    so a picture waits for no video. A job waits in one line, whatever it holds. A text that finds `text` busy may take
    a free one of the others.
    """

    def __init__(self, config: ServeConfig, owner: Owner, metrics: Metrics, max_model_len: int) -> None:
        self._limits = config.media
        self._wait_seconds = config.wait_seconds
        self._line: FairQueue[WorkerJob] = FairQueue()
        # Of several workers of media one compiles no form: forms of many clients would keep all media waiting.
        self._n_compiling, self._most_compiling = 0, max(1, config.workers - 1)
        start = StartWorker(
            checkpoint=str(config.model.path), media=config.media, max_model_len=max_model_len,
            shm_root=str(owner.root), directory=os.readlink("/proc/self/cwd"), worker=config.worker,
            compile_bytes=config.engine.forms_bytes // 2 // self._most_compiling,
            chat_template=str(config.model.chat_template or ""),
        )  # fmt: skip
        self.slots = tuple(Worker("worker", start, self, config, owner, metrics) for _ in range(config.workers))
        self.text = Worker("text_worker", replace(start, lane="text"), self, config, owner, metrics)
        self.picture = Worker("picture_worker", replace(start, lane="picture"), self, config, owner, metrics)
        self.all = (*self.slots, self.text, self.picture)
        self.fetcher = Fetcher(config, owner, metrics) if config.fetch.domains else None
        self.children: tuple[SupervisedChild, ...] = (*self.all, self.fetcher) if self.fetcher else self.all

    @property
    def crash_looping(self) -> bool:
        return all(map(attrgetter("crash_looping"), self.slots))

    @property
    def n_up(self) -> int:
        """Of those that take every job."""
        return sum(slot.up for slot in self.slots)

    @property
    def serves(self) -> bool:
        """Whether a job of any kind is done at once, or after those before it, or after a planned replacement."""
        return any(slot.up or slot.being_replaced for slot in self.slots)

    @property
    def n_waiting(self) -> int:
        """Jobs that wait for a worker."""
        return len(self._line.waiting)

    def n_waiting_in(self, lane: Lane) -> int:
        """Of these, those for the worker of texts, of pictures, or for neither."""
        return sum(job.cost.lane == lane for job in self._line.waiting)

    async def begin(self, message: Job, client: str, *, short: bool = True) -> WorkerJob:
        """Wait for a free worker and tell it the job. The caller must read it to its end, or cancel() it.

        `client`: whose share of the workers' time it takes; `short`: the worker of pictures has not handed it back.
        Raises NobodyUp, and WorkerDied when no worker can be started any more.
        """
        cost = cost_of(message, self._limits, short=short)
        job = WorkerJob(message.request_id, client=client, cost=cost, expected=cost.seconds)
        self._line.join(job)
        self.dispatch()
        try:
            await job.wait_for_turn(self, self._wait_seconds)
        except BaseException:  # an interrupt too: who has gone must not stay in line, nor keep a worker
            self.cancel(job)
            raise
        assert job.worker is not None
        job.begun = time.monotonic()
        job.worker.tell(message, large=job.cost.size > LARGE)
        return job

    def cancel(self, job: WorkerJob) -> None:
        """Nobody wants its answers any more. `job.ended` says when its worker has let go of it."""
        if job.ended.is_set():
            return
        if job.worker is None:
            self._line.done(job, None)
            job.end()
        elif job.begun is None:
            self.over(job.worker)
            self.dispatch()
        else:
            job.worker.tell(Cancel(request_id=job.request_id))

    def dispatch(self) -> None:
        """Give free workers to those whose turn it is.

        The one for texts comes first, so that the others stay free; the one for pictures last, so that it does.
        """
        for worker in (self.text, *self.slots, self.picture):
            takes = worker.takes if self._n_compiling < self._most_compiling else worker.takes_beside_forms
            job = self._line.next(takes) if worker.state == "free" else None
            if job is not None:
                self._n_compiling += job.cost.compiles
                worker.job, job.worker, worker.state = job, worker, "busy"
                worker.liveness.begin_job(job.request_id, job.cost)
                job.wake()  # `begin` tells the worker once it has seen that

    def over(self, worker: Worker, failure: WorkerDied | None = None) -> None:
        """The worker has let go of its job: by its last answer, or by its death."""
        job, worker.job = worker.job, None
        assert job is not None
        self._n_compiling -= job.cost.compiles
        if worker.state == "busy":
            worker.state = "free"
        worker.liveness.begin_job(None)
        self._line.done(job, 0.0 if job.begun is None else time.monotonic() - job.begun)
        if job.begun is None and failure is not None:  # it was never told to the dead one
            job.worker = None
            self._line.join(job)
        else:
            job.end(failure)

    def look_again(self) -> None:
        """A worker is gone: when none can be started any more, nobody is kept waiting."""
        self.dispatch()
        for job in self._line.waiting:
            job.wake()

    def may_begin(self, job: WorkerJob) -> bool:
        if job.worker is None and self.crash_looping and not any(one.up for one in self.all if one.takes(job)):
            raise WorkerDied
        return job.worker is not None

    def seconds_down_for(self, job: WorkerJob) -> float:
        return min(worker.seconds_down for worker in self.all if worker.takes(job))
