"""The tokenizer workers as the server sees them: a first-come gate to a free one, and the conversation of one job."""

import asyncio
import heapq
import logging
from collections.abc import Sequence

from configs.serve import MediaConfig
from server.children.background import Background
from server.children.gate import Gate
from server.children.processes import Child
from server.children.renewal import Renewal
from server.children.supervisor import ChildState
from shm import ChannelClosed, ChannelError
from tokenization.chat.parts import Chat, Media
from tokenization.messages import (
    Cancel,
    Draw,
    Drawn,
    Encode,
    FromWorker,
    Leases,
    Measured,
    Prepare,
    Prepared,
    PrepareFailed,
    Room,
    WorkerGrown,
    WorkerPulse,
    WorkerReady,
)
from tokenization.messages import Job as WorkerJob

log = logging.getLogger("pixelferry")

SECONDS_PER_MEDIUM = 10.0  # what each media item adds to the time that a job may take
SECONDS_PER_VIDEO = 180.0  # the same of a video: --max-decoded-frames of full HD at a hundred a second
SECONDS_PER_SECOND = 0.1  # the same of each second that a sound may last: several times what the slowest codec takes

LARGE = 1 << 20  # characters of a job from which on it is sent beside the loop's other work

Answer = Measured | Prepared | Drawn | PrepareFailed


class WorkerDied(Exception):
    """The worker ended in mid-job. It is reaped: nothing writes to the job's leases any more."""


class Job:
    """One chat, text or drawing at one worker, from Prepare, Encode or Draw to its answer or the worker's death."""

    def __init__(self, request_id: str, media_seconds: float) -> None:
        self.request_id = request_id
        self.media_seconds = media_seconds  # what its media add to the time that it may take
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.undecided = False  # the worker waits for Leases or Cancel
        self.abandoned = False
        self._answers: asyncio.Queue[Answer | None] = asyncio.Queue()

    def put(self, answer: Answer | None) -> None:
        self.undecided = isinstance(answer, Measured)
        if not self.undecided and not self.ended.done():
            self.ended.set_result(None)
        self._answers.put_nowait(answer)

    async def next(self) -> Answer:
        """The worker's next answer. Raises WorkerDied."""
        answer = await self._answers.get()
        if answer is None:
            raise WorkerDied
        return answer


class WorkerSlot:
    """One place for a worker process; observed by a supervisor."""

    def __init__(self, pool: "WorkerPool") -> None:
        self._pool = pool
        self._state = ChildState()
        self._renewal = Renewal(lambda: pool.others_serve(self))
        self._busy_seconds = 0.0
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

    def on_started(self, child: Child) -> None:
        self._state.start(child)
        self._renewal.started()
        self._busy_seconds = 0.0

    def on_message(self, message: FromWorker) -> bool:
        match message:
            case WorkerReady():
                self._state.ready()
                self._pool.gate.offer()
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
            self.job.put(None)
            self.job = None
        self.taken = False
        self._pool.on_reaped()

    def hang_reason(self, silent: float) -> str | None:
        allowed = self._pool.step_seconds + (self.job.media_seconds if self.job else 0.0)
        busy = self._busy_seconds + silent
        return f"{busy:.0f} s on one job" if busy > allowed else None

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
            return
        job.put(answer)
        if job.undecided:
            if job.abandoned:
                self._pool.cancel(self, job)
            return
        self.job, self.taken, self._busy_seconds = None, False, 0.0  # its last pulse may have told of this job
        self._pool.gate.offer()


class WorkerPool:
    """All workers. Jobs get a free one in the order in which they came."""

    def __init__(
        self, n: int, step_seconds: float, background: Background, limits: MediaConfig, *, wait_seconds: float
    ) -> None:
        self.step_seconds = step_seconds
        self._max_items = limits.max_items
        self._sound_seconds = SECONDS_PER_SECOND * limits.max_audio_seconds
        self.slots = tuple(WorkerSlot(self) for _ in range(n))
        self._background = background
        self.gate = Gate(self._take, self._put_back, self._seconds_down, wait_seconds)

    @property
    def crash_looping(self) -> bool:
        return all(slot.crash_looping for slot in self.slots)

    def others_serve(self, slot: WorkerSlot) -> bool:
        return all(other.serves for other in self.slots if other is not slot)

    @property
    def n_up(self) -> int:
        return sum(slot.up for slot in self.slots)

    @property
    def n_waiting(self) -> int:
        return self.gate.n_waiting

    async def begin(
        self, request_id: str, chat: Chat, *, room: Room | None = None, count_only: bool = False
    ) -> tuple[WorkerSlot, Job]:
        """Wait for a free worker and hand it the chat. The caller must see the job through, or abandon() it.

        Raises NobodyUp and WorkerDied, as `encode` and `draw` do.
        """
        # A worker opens no more than so many: it refuses the chat, or the model's window drops the others.
        seconds = sum(heapq.nlargest(self._max_items, map(self._media_seconds, chat.media)))
        prepare = Prepare(request_id=request_id, chat=chat, count_only=count_only, room=room)
        return await self._hand(prepare, seconds, chat.size)

    async def encode(self, message: Encode) -> tuple[WorkerSlot, Job]:
        return await self._hand(message, 0.0, len(message.text))

    async def draw(self, message: Draw) -> tuple[WorkerSlot, Job]:
        return await self._hand(message, SECONDS_PER_MEDIUM, len(message.media.source))

    async def lease(self, slot: WorkerSlot, job: Job, names: Sequence[str]) -> None:
        job.undecided = False
        await slot.send(Leases(request_id=job.request_id, names=tuple(names)))

    def _media_seconds(self, medium: Media) -> float:
        heard = self._sound_seconds if medium.kind == "audio" or medium.options.use_audio else 0.0
        return heard + (SECONDS_PER_VIDEO if medium.kind == "video" else SECONDS_PER_MEDIUM)

    def abandon(self, slot: WorkerSlot, job: Job) -> None:
        """Nobody wants the result any more; job.ended says when the worker has let go of it."""
        job.abandoned = True
        if job.undecided:
            self.cancel(slot, job)

    def cancel(self, slot: WorkerSlot, job: Job) -> None:
        job.undecided = False
        self._background.spawn(slot.send(Cancel(request_id=job.request_id)))

    def on_reaped(self) -> None:
        """A worker is gone. When none can be started any more, nobody is kept waiting."""
        if self.crash_looping:
            self.gate.fail(WorkerDied())

    async def _hand(self, message: WorkerJob, media_seconds: float, size: int) -> tuple[WorkerSlot, Job]:
        """size: characters of what the job holds."""
        slot = await self._enter()
        job = Job(message.request_id, media_seconds)
        slot.job = job
        # A task of its own: a client that leaves in the middle of a large frame must not take the job's handle along.
        self._background.spawn(slot.send(message, large=size > LARGE))
        return slot, job

    def _take(self) -> WorkerSlot | None:
        slot = next((slot for slot in self.slots if slot.free), None)
        if slot is not None:
            slot.taken = True
        return slot

    def _put_back(self, slot: WorkerSlot) -> None:
        slot.taken = False

    def _seconds_down(self) -> float:
        return min(slot.seconds_down for slot in self.slots)

    async def _enter(self) -> WorkerSlot:
        """A free worker that is taken. Raises NobodyUp, and WorkerDied when none can be started any more."""
        while True:
            slot = await self.gate.enter()
            if slot.up:
                return slot
            self._put_back(slot)  # it died between the offer and now
