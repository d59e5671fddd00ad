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
    """It was killed because the job took longer than it may, in all or in one call: another would fare no better."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"{seconds:.0f} s on one job")
        self.seconds = seconds  # what it may take


class NotShort(Exception):
    """The worker of pictures has handed a chat back: it is good, and takes longer than what is left to that one."""


class Job:
    """One chat, text or drawing at one worker, from Prepare, Encode or Draw to its answer or the worker's death."""

    def __init__(self, request_id: str, ticket: Ticket, seconds: float = 0.0, still_seconds: float = 0.0) -> None:
        """What it holds adds to the time that it may take in all, and without getting further."""
        self.request_id = request_id
        self.measure_seconds = seconds
        self.still_seconds = still_seconds
        self.load_seconds = 0.0  # as the worker says once it has measured
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
        self, step_seconds: float, still_seconds: float, *, on_free: Callable[[], None],
        on_over: Callable[[Job], None], on_lost: Callable[[], None], others_serve: Callable[["WorkerSlot"], bool],
    ) -> None:  # fmt: skip
        """on_free: it may take a job now; on_over: a job has ended; on_lost: its process is gone.

        step_seconds: what a job that holds nothing may take; still_seconds: the same without getting further.

        others_serve: whether all workers but this one take jobs, so that it may be replaced.
        """
        self._step_seconds, self._still_seconds = step_seconds, still_seconds
        self._on_free = on_free
        self._on_over = on_over
        self._on_lost = on_lost
        self._state = ChildState()
        self._renewal = Renewal(lambda: others_serve(self))
        self._busy = self._still = 0.0  # seconds, as its last pulse told
        self._overdue: float | None = None  # the limit that its job has passed
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
        self._busy, self._still, self._overdue = 0.0, 0.0, None

    def on_message(self, message: FromWorker) -> bool:
        match message:
            case WorkerReady():
                self._state.ready()
                self._renewal.ready()
                self._on_free()
                return True
            case WorkerPulse():
                running = self.job.request_id if self.job else None
                is_of_job = message.request_id == running
                self._busy = message.busy_seconds if is_of_job else 0.0
                self._still = message.still_seconds if is_of_job else 0.0
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
            self._end(self.job, WorkerDied() if self._overdue is None else TookTooLong(self._overdue))
        self.taken = False
        self._on_lost()

    def hang_reason(self, silent: float) -> str | None:
        """A call into a decoder that does not return lets go of the lock, and the pulse goes on: the job does not."""
        job, busy, still = self.job, self._busy + silent, self._still + silent
        most, most_still = self._step_seconds, self._still_seconds
        if job is not None:
            most, most_still = most + job.measure_seconds + job.load_seconds, most_still + job.still_seconds
        self._overdue = None  # whoever asks kills it for that
        if busy > most:
            self._overdue = most
            return f"{busy:.0f} s on one job"
        if job is not None and still > most_still:
            self._overdue = most_still
            return f"{still:.0f} s in one call of a job"
        return None

    def renewal_reason(self) -> str | None:
        return self._renewal.due(at_rest=not self.taken)

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
            job.load_seconds = answer.seconds
            job.put(answer)
        else:
            self._end(job, answer)
            self.taken, self._busy, self._still = False, 0.0, 0.0  # its last pulse may have told of this job
            self._on_free()

    def _end(self, job: Job, answer: Answer | WorkerDied) -> None:
        self.job = None
        job.put(answer)
        self._on_over(job)
