"""The tokenizer workers as the server sees them: who gets a free one, and what is said to it about a job."""

import time
from collections.abc import Mapping, Sequence

from configs.serve import MediaConfig
from server.children.background import Background
from server.children.fair_shares import FairShares, Ticket
from server.children.gate import Gate
from server.children.job_cost import (
    MAY_TEXT,
    may_take,
    may_take_text,
    seconds_of_chat,
    seconds_of_medium,
    seconds_of_text,
)
from server.children.worker_slot import Job, WorkerDied, WorkerSlot
from tokenization.chat.parts import Chat
from tokenization.messages import Cancel, Draw, Encode, Lane, Leases, Prepare, Room
from tokenization.messages import Job as WorkerJob

DRAW_SECONDS = 40.0  # what drawing on a picture may take beside --step-seconds: a PNG is written in one call

QUICK_SECONDS = 0.5  # a text that is expected to take longer would hold up the others: its turn is among the media

LARGE = 1 << 20  # characters of a job from which on it is sent beside the loop's other work


class WorkerPool:
    """All workers: `slots` take every job, `text` takes texts alone, which so never wait for a medium.

    `picture` takes chats whose media are pictures while all others are busy, and hands those back that are not short:
    so a picture waits for no video. A job waits in one line, whatever it holds, and FairShares says who is next. A text
    that finds `text` busy may take a free one of the others.
    """

    def __init__(
        self, n: int, step_seconds: float, background: Background, limits: MediaConfig, *, wait_seconds: float,
        still_seconds: float,
    ) -> None:  # fmt: skip
        """still_seconds: for how long a job may get no further."""
        self._limits = limits
        self._background = background
        self._shares = FairShares()
        self.slots = tuple(self._slot(step_seconds, still_seconds) for _ in range(n))
        self.text, self.picture = (self._slot(step_seconds, still_seconds) for _ in range(2))
        self._own: Mapping[Lane, tuple[WorkerSlot, ...]] = {
            "text": (self.text,), "picture": (self.picture,), "media": (),
        }  # fmt: skip
        self._gate = Gate(self._take, self._put_back, self._seconds_down, wait_seconds)

    def _slot(self, step_seconds: float, still_seconds: float) -> WorkerSlot:
        return WorkerSlot(
            step_seconds, still_seconds, on_free=self._offer, on_over=self._over, on_lost=self._lost,
            others_serve=self._others_serve,
        )  # fmt: skip

    @property
    def crash_looping(self) -> bool:
        return all(slot.crash_looping for slot in self.slots)

    def _others_serve(self, slot: WorkerSlot) -> bool:
        """Whether it may be replaced: one worker at a time, whatever it is for."""
        return all(other.serves for other in (*self.slots, self.text, self.picture) if other is not slot)

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

    def n_waiting_in(self, lane: Lane) -> int:
        """Of these, those for the worker of texts, of pictures, or for neither."""
        return sum(ticket.lane == lane for ticket in self._gate.waiting)

    async def begin(
        self, request_id: str, chat: Chat, client: str, *, room: Room | None = None, count_only: bool = False,
        short: bool = True,
    ) -> tuple[WorkerSlot, Job]:  # fmt: skip
        """Wait for a free worker and hand it the chat. The caller must see the job through, or abandon() it.

        `client`: whose share of the workers' time it takes; `short`: the worker of pictures has not handed it back.
        Raises NobodyUp and WorkerDied, as `encode` and `draw` do.
        """
        kinds = {medium.kind for medium in chat.media}
        ticket = Ticket(client=client, seconds=seconds_of_chat(chat))
        if not kinds:
            ticket.lane = _lane_of_text(ticket.seconds)
        elif kinds == {"image"} and short:
            ticket.lane = "picture"
        prepare = Prepare(request_id=request_id, chat=chat, count_only=count_only, room=room)
        job = Job(request_id, ticket, may_take(chat, self._limits), may_take_text(chat))
        return await self._hand(prepare, job, chat.size)

    async def encode(self, message: Encode, client: str) -> tuple[WorkerSlot, Job]:
        size = len(message.text)
        seconds = seconds_of_text(size)
        ticket = Ticket(client=client, seconds=seconds, lane=_lane_of_text(seconds))
        return await self._hand(message, Job(message.request_id, ticket, MAY_TEXT * size, MAY_TEXT * size), size)

    async def draw(self, message: Draw, client: str) -> tuple[WorkerSlot, Job]:
        ticket = Ticket(client=client, seconds=seconds_of_medium(message.media))
        return await self._hand(
            message, Job(message.request_id, ticket, DRAW_SECONDS, DRAW_SECONDS), len(message.media.source)
        )

    async def lease(self, slot: WorkerSlot, job: Job, names: Sequence[str]) -> None:
        await slot.send(Leases(request_id=job.request_id, names=tuple(names)))

    def abandon(self, slot: WorkerSlot, job: Job) -> None:
        """Nobody wants the result any more. The worker is told at once; job.ended says when it has let go of it."""
        self._background.spawn(self._cancel(slot, job))

    async def _cancel(self, slot: WorkerSlot, job: Job) -> None:
        await job.sent.wait()  # a worker forgets the cancel of a job that it does not know
        if slot.job is job:
            await slot.send(Cancel(request_id=job.request_id))

    async def _hand(self, message: WorkerJob, job: Job, size: int) -> tuple[WorkerSlot, Job]:
        """size: characters of what the job holds."""
        slot = await self._enter(job.ticket)
        job.begun = time.monotonic()
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
        """A free worker, and whose turn it is there.

        The one for texts comes first, so that the others stay free; the one for pictures last, so that it does.
        """
        lines: list[tuple[WorkerSlot, Lane | None]] = [
            (self.text, "text"), *((slot, None) for slot in self.slots), (self.picture, "picture"),
        ]  # fmt: skip
        for slot, lane in lines:
            line = [ticket for ticket in waiting if lane in (None, ticket.lane)] if slot.free else []
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
            self._gate.fail(WorkerDied(), lambda ticket: not any(slot.up for slot in self._own[ticket.lane]))

    def _seconds_down(self, ticket: Ticket) -> float:
        return min(slot.seconds_down for slot in (*self.slots, *self._own[ticket.lane]))


def _lane_of_text(seconds: float) -> Lane:
    return "text" if seconds <= QUICK_SECONDS else "media"
