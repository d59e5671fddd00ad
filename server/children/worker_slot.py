"""One place for a worker process, and the conversation of the one job that it has."""

import asyncio
import logging
import time
from collections.abc import Callable

from server.children.fair_shares import Ticket
from server.children.processes import Child
from server.children.renewal import Renewal
from server.children.supervisor import ChildState
from shm import ChannelClosed, ChannelError
from tokenization.messages import (
    Cancel,
    Drawn,
    FromWorker,
    Leases,
    Measured,
    Prepared,
    PrepareFailed,
    WorkerGrown,
    WorkerPulse,
    WorkerReady,
)
from tokenization.messages import Job as WorkerJob

log = logging.getLogger("pixelferry")

REPLACE_SECONDS = 10.0  # a replacement that takes longer counts as a worker that is down

Answer = Measured | Prepared | Drawn | PrepareFailed


class WorkerDied(Exception):
    """The worker ended in mid-job. It is reaped: nothing writes to the job's leases any more."""


class TookTooLong(WorkerDied):
    """It was killed because the job had taken longer than its media may take: another worker would fare no better."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.0f} s on one job")
        self.seconds = seconds  # what it may take


class Job:
    """One chat, text or drawing at one worker, from Prepare, Encode or Draw to its answer or the worker's death."""

    def __init__(self, request_id: str, media_seconds: float, ticket: Ticket) -> None:
        self.request_id = request_id
        self.media_seconds = media_seconds  # what its media add to the time that it may take
        self.ticket = ticket
        self.begun = time.monotonic()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sent = asyncio.Event()  # the worker was told all of it, or is gone
        self._answers: asyncio.Queue[Answer | WorkerDied] = asyncio.Queue()

    def put(self, answer: Answer | WorkerDied) -> None:
        if not isinstance(answer, Measured) and not self.ended.done():
            self.ended.set_result(None)
        self._answers.put_nowait(answer)

    async def next(self) -> Answer:
        """The worker's next answer. Raises WorkerDied, TookTooLong."""
        answer = await self._answers.get()
        if isinstance(answer, WorkerDied):
            raise answer
        return answer


class WorkerSlot:
    """One place for a worker process; observed by a supervisor."""

    def __init__(
        self, step_seconds: float, *, on_free: Callable[[], None], on_over: Callable[[Job], None],
        on_lost: Callable[[], None], others_serve: Callable[["WorkerSlot"], bool],
    ) -> None:  # fmt: skip
        """on_free: it may take a job now; on_over: a job has ended; on_lost: its process is gone.

        others_serve: whether all workers but this one take jobs, so that it may be replaced.
        """
        self._step_seconds = step_seconds
        self._on_free = on_free
        self._on_over = on_over
        self._on_lost = on_lost
        self._state = ChildState()
        self._renewal = Renewal(lambda: others_serve(self))
        self._busy_seconds = 0.0
        self._overdue = False  # its job has taken longer than it may
        self.taken = False
        self.job: Job | None = None

    @property
    def up(self) -> bool:
        return self._state.up

    @property
    def crash_looping(self) -> bool:
        return self._state.crash_looping

    @property
    def seconds_down(self) -> float:
        return self._state.seconds_down

    @property
    def free(self) -> bool:
        return self.serves and not self.taken

    @property
    def serves(self) -> bool:
        """Whether it takes jobs, now or after the one it has."""
        return self.up and not self._renewal.begun

    @property
    def being_replaced(self) -> bool:
        """Whether it is away for a moment because it kept too much memory: who comes now waits for the next one."""
        return self._renewal.ended and not self.up and self.seconds_down < REPLACE_SECONDS

    def on_started(self, child: Child) -> None:
        self._state.start(child)
        self._renewal.started()
        self._busy_seconds, self._overdue = 0.0, False

    def on_message(self, message: FromWorker) -> bool:
        match message:
            case WorkerReady():
                self._state.ready()
                self._renewal.ready()
                self._on_free()
                return True
            case WorkerPulse():
                running = self.job.request_id if self.job else None
                self._busy_seconds = message.busy_seconds if message.request_id == running else 0.0
            case WorkerGrown():
                self._renewal.wanted(message.nbytes)
            case _:
                self._on_answer(message)
        return False

    def on_unavailable(self) -> None:
        self._state.down()

    def on_reaped(self) -> None:
        self._state.lost()
        if self.job is not None:
            self._end(self.job, TookTooLong(self._allowed) if self._overdue else WorkerDied())
        self.taken = False
        self._on_lost()

    def hang_reason(self, silent: float) -> str | None:
        busy = self._busy_seconds + silent
        self._overdue = busy > self._allowed  # whoever asks kills it for that
        return f"{busy:.0f} s on one job" if self._overdue else None

    def renewal_reason(self) -> str | None:
        return self._renewal.due(at_rest=not self.taken)

    @property
    def _allowed(self) -> float:
        """Seconds that the job may take."""
        return self._step_seconds + (self.job.media_seconds if self.job else 0.0)

    async def send(self, message: WorkerJob | Leases | Cancel, *, large: bool = False) -> None:
        """Say something; a worker that died meanwhile is reported by its job, not here."""
        if self._state.child is not None:
            try:
                await self._state.child.channel.send(message, large=large)
            except ChannelClosed:
                return
            except ChannelError as error:  # the chat is longer than a frame may be
                text = str(error)
                self._on_answer(PrepareFailed(request_id=message.request_id, kind="bad_request", message=text))

    def _on_answer(self, answer: Answer) -> None:
        job = self.job
        if job is None or job.request_id != answer.request_id:
            log.error("a worker answered a request that it does not have")
        elif isinstance(answer, Measured):
            job.put(answer)
        else:
            self._end(job, answer)
            self.taken, self._busy_seconds = False, 0.0  # its last pulse may have told of this job
            self._on_free()

    def _end(self, job: Job, answer: Answer | WorkerDied) -> None:
        self.job = None
        job.put(answer)
        self._on_over(job)
