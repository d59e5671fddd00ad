"""The tokenizer workers as the server sees them: who gets a free one, and what is said to it about a job."""

import heapq
import time
from collections.abc import Sequence

from configs.serve import MediaConfig
from server.children.background import Background
from server.children.fair_shares import FairShares, Ticket
from server.children.gate import Gate
from server.children.job_cost import seconds_of_chat, seconds_of_medium, seconds_of_text
from server.children.worker_slot import Job, WorkerDied, WorkerSlot
from tokenization.chat.parts import Chat, Media
from tokenization.messages import Cancel, Draw, Encode, Leases, Prepare, Room
from tokenization.messages import Job as WorkerJob

SECONDS_PER_MEDIUM = 10.0  # what each media item adds to the time that a job may take
SECONDS_PER_VIDEO = 180.0  # the same of a video: --max-decoded-frames of full HD at a hundred a second
SECONDS_PER_SECOND = 0.1  # the same of each second that a sound may last: several times what the slowest codec takes

QUICK_SECONDS = 0.5  # a text that is expected to take longer would hold up the others: its turn is among the media

LARGE = 1 << 20  # characters of a job from which on it is sent beside the loop's other work


class WorkerPool:
    """All workers: `slots` take every job, `text` takes texts alone, which so never wait for a medium.

    A job waits in one line, whatever it holds, and FairShares says who is next. A text that finds `text` busy may take
    a free one of the others.
    """

    def __init__(
        self, n: int, step_seconds: float, background: Background, limits: MediaConfig, *, wait_seconds: float
    ) -> None:
        self._max_items = limits.max_items
        self._sound_seconds = SECONDS_PER_SECOND * limits.max_audio_seconds
        self._background = background
        self._shares = FairShares()
        self.slots = tuple(self._slot(step_seconds) for _ in range(n))
        self.text = self._slot(step_seconds)
        self._gate = Gate(self._take, self._put_back, self._seconds_down, wait_seconds)

    def _slot(self, step_seconds: float) -> WorkerSlot:
        return WorkerSlot(
            step_seconds, on_free=self._offer, on_over=self._over, on_lost=self._lost, others_serve=self._others_serve
        )

    @property
    def crash_looping(self) -> bool:
        return all(slot.crash_looping for slot in self.slots)

    def _others_serve(self, slot: WorkerSlot) -> bool:
        """Whether it may be replaced: one worker at a time, that of texts included."""
        return all(other.serves for other in (*self.slots, self.text) if other is not slot)

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
        return self._gate.n_waiting

    @property
    def n_texts_waiting(self) -> int:
        """Of these, those for the worker of texts."""
        return sum(ticket.quick for ticket in self._gate.waiting)

    async def begin(
        self, request_id: str, chat: Chat, client: str, *, room: Room | None = None, count_only: bool = False
    ) -> tuple[WorkerSlot, Job]:
        """Wait for a free worker and hand it the chat. The caller must see the job through, or abandon() it.

        `client`: whose share of the workers' time it takes. Raises NobodyUp and WorkerDied, as `encode` and `draw` do.
        """
        media = chat.media
        # A worker opens no more than so many: it refuses the chat, or the model's window drops the others.
        seconds = sum(heapq.nlargest(self._max_items, map(self._media_seconds, media)))
        prepare = Prepare(request_id=request_id, chat=chat, count_only=count_only, room=room)
        return await self._hand(prepare, _ticket(client, seconds_of_chat(chat), text=not media), seconds, chat.size)

    async def encode(self, message: Encode, client: str) -> tuple[WorkerSlot, Job]:
        size = len(message.text)
        return await self._hand(message, _ticket(client, seconds_of_text(size), text=True), 0.0, size)

    async def draw(self, message: Draw, client: str) -> tuple[WorkerSlot, Job]:
        ticket = _ticket(client, seconds_of_medium(message.media), text=False)
        return await self._hand(message, ticket, SECONDS_PER_MEDIUM, len(message.media.source))

    async def lease(self, slot: WorkerSlot, job: Job, names: Sequence[str]) -> None:
        await slot.send(Leases(request_id=job.request_id, names=tuple(names)))

    def abandon(self, slot: WorkerSlot, job: Job) -> None:
        """Nobody wants the result any more. The worker is told at once; job.ended says when it has let go of it."""
        self._background.spawn(self._cancel(slot, job))

    async def _cancel(self, slot: WorkerSlot, job: Job) -> None:
        await job.sent.wait()  # a worker forgets the cancel of a job that it does not know
        if slot.job is job:
            await slot.send(Cancel(request_id=job.request_id))

    def _media_seconds(self, medium: Media) -> float:
        heard = self._sound_seconds if medium.kind == "audio" or medium.options.use_audio else 0.0
        return heard + (SECONDS_PER_VIDEO if medium.kind == "video" else SECONDS_PER_MEDIUM)

    async def _hand(
        self, message: WorkerJob, ticket: Ticket, media_seconds: float, size: int
    ) -> tuple[WorkerSlot, Job]:
        """size: characters of what the job holds."""
        slot = await self._enter(ticket)
        job = Job(message.request_id, media_seconds, ticket)
        slot.job = job
        # A task of its own: a client that leaves in the middle of a large frame must not take the job's handle along.
        self._background.spawn(self._send(slot, job, message, size))
        return slot, job

    async def _send(self, slot: WorkerSlot, job: Job, message: WorkerJob, size: int) -> None:
        try:
            await slot.send(message, large=size > LARGE)
        finally:
            job.sent.set()

    async def _enter(self, ticket: Ticket) -> WorkerSlot:
        """A free worker that is taken. Raises NobodyUp, and WorkerDied when none can be started any more."""
        while True:
            self._shares.arrive(ticket)
            try:
                slot = await self._gate.enter(ticket)
            except BaseException:  # an interrupt too: who has gone must not stay in line
                self._shares.end(ticket, 0.0)
                raise
            if slot.up:
                return slot
            self._put_back(slot)  # it died between the offer and now
            self._shares.end(ticket, 0.0)

    def _take(self, waiting: Sequence[Ticket]) -> tuple[Ticket, WorkerSlot] | None:
        """A free worker, and whose turn it is there. The one for texts comes first, so that the others stay free."""
        free = next((slot for slot in self.slots if slot.free), None)
        lines = [(self.text, [ticket for ticket in waiting if ticket.quick])] if self.text.free else []
        lines += [(free, list(waiting))] if free is not None else []
        for slot, line in lines:
            chosen = self._shares.pick(line)
            if chosen is not None:
                self._shares.begin(chosen, line)
                slot.taken = True
                return chosen, slot
        return None

    def _put_back(self, slot: WorkerSlot) -> None:
        slot.taken = False

    def _offer(self) -> None:
        self._gate.offer()

    def _over(self, job: Job) -> None:
        self._shares.end(job.ticket, time.monotonic() - job.begun)

    def _lost(self) -> None:
        """A worker is gone. When none can be started any more, nobody is kept waiting."""
        if self.crash_looping:
            self._gate.fail(WorkerDied(), lambda ticket: not (ticket.quick and self.text.up))

    def _seconds_down(self, ticket: Ticket) -> float:
        slots = (*self.slots, self.text) if ticket.quick else self.slots
        return min(slot.seconds_down for slot in slots)


def _ticket(client: str, seconds: float, *, text: bool) -> Ticket:
    return Ticket(client=client, seconds=seconds, quick=text and seconds <= QUICK_SECONDS)
