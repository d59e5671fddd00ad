"""The engine as the server sees it: a gate to its places, and the events of each request inside."""

import asyncio
import time
from collections.abc import Callable, Sequence

import msgspec

from model.engine.messages import (
    Abort,
    EnginePulse,
    EngineReady,
    EngineStats,
    Finished,
    FromEngine,
    Generate,
    MediaRead,
    PromptScored,
    StepDone,
    Token,
    TokenEvent,
)
from server.children.background import Background
from server.children.gate import Gate
from server.children.processes import Child
from server.children.supervisor import ChildState
from shm import ChannelClosed, ChannelError

# What each unit of work adds to the time that a step may take: generous for a large model on a small CPU.
SECONDS_PER_TOKEN = 0.5
SECONDS_PER_PATCH = 0.05
UNANSWERED = 3  # canaries in a row
SECONDS_PER_PAIR = 1e-5  # of patches that see each other; two busy cores took 4e-6 in a tower of 32 full blocks


class EngineDied(Exception):
    """The engine process ended with this request inside. It is reaped: nothing reads the request's segments."""


class EngineFailed(Exception):
    """The engine could not carry this one request out; it lives on."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Stream:
    def __init__(self, request_id: str, n: int = 1) -> None:
        """n: answers that it will have."""
        self.request_id = request_id
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()  # the engine holds nothing of it
        self.prompt: list[Token] = []  # from its second token on, where they are scored; whole before the first answer
        self._unfinished = set(range(n))  # answers whose last token has not been seen
        self._events: list[TokenEvent] = []
        self._failure: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def next(self) -> Sequence[TokenEvent]:
        """The tokens since the last call; none once the request has ended. Raises EngineDied, EngineFailed."""
        if not self._events and not self.ended.done():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._events and self._failure is not None:
            raise self._failure
        events, self._events = self._events, []
        return events

    def put(self, event: TokenEvent) -> None:
        if event.finish is not None:
            self._unfinished.discard(event.index)
        self._events.append(event)
        self._wake()

    def end(self, failure: Exception | None = None) -> None:
        """The engine holds nothing of the request any more. `failure` is for a reader who waits for more tokens."""
        self._failure = failure
        if not self.ended.done():
            self.ended.set_result(None)
        self._wake()

    @property
    def complete(self) -> bool:
        """The last token of every answer has been seen: there is nothing to abort."""
        return not self._unfinished

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient:
    """The engine's place in the server, over all incarnations; observed by a supervisor.

    `max_seqs` requests are inside at once, the others wait here and so survive the engine's death.
    """

    def __init__(
        self,
        max_seqs: int,
        step_seconds: float,
        background: Background,
        *,
        wait_seconds: float,
        on_media_read: Callable[[str, tuple[str, ...]], None],
        on_step: Callable[[StepDone], None],
    ) -> None:
        self._max_seqs = max_seqs
        self._step_seconds = step_seconds
        self._background = background
        self._on_media_read = on_media_read
        self._on_step = on_step
        self._state = ChildState()
        self._pulse: EnginePulse | None = None
        self._inside: dict[str, Stream] = {}
        self._gate = Gate(self._take, self._put_back, lambda _: self._state.seconds_down, wait_seconds)
        self._places = 0  # given to somebody who has not entered yet
        self.info: EngineReady | None = None  # of the latest incarnation that was ready
        self.stats: EngineStats | None = None
        self.last_token = self.last_work = time.monotonic()  # when the one was sampled, when the other was seen
        self.unanswered = 0  # canaries in a row that this incarnation gave no token

    @property
    def up(self) -> bool:
        return self._state.up

    @property
    def crash_looping(self) -> bool:
        return self._state.crash_looping

    @property
    def full(self) -> bool:
        """Every place is taken: whoever comes now waits."""
        return len(self._inside) + self._places >= self._max_seqs

    @property
    def n_waiting(self) -> int:
        return self._gate.n_waiting

    async def submit(self, generate: Generate) -> Stream:
        """Wait for a place and hand the request over. The caller must see it end, or leave().

        Raises NobodyUp and EngineDied.
        """
        await self._enter()
        return self.enter(generate)

    def enter(self, generate: Generate) -> Stream:
        """Hand a request over at once, whether or not a place is free. The caller must see it end, or leave()."""
        stream = Stream(generate.request_id, generate.sampling.n)
        self._inside[stream.request_id] = stream
        self._background.spawn(self._send(generate))
        return stream

    def leave(self, stream: Stream) -> None:
        """The caller is done with it; an unfinished one is aborted. stream.ended says when the engine let go."""
        if not stream.complete and not stream.ended.done():
            self._background.spawn(self._send(Abort(request_id=stream.request_id)))

    def drop(self, stream: Stream, index: int) -> None:
        self._background.spawn(self._send(Abort(request_id=stream.request_id, index=index)))

    def on_started(self, child: Child) -> None:
        self._state.start(child)
        self._pulse = self.stats = None
        self.unanswered = 0

    def on_message(self, message: FromEngine) -> bool:
        match message:
            case StepDone():
                self._on_step_done(message)
            case EnginePulse():
                self._pulse = message
                if message.step_seconds:
                    self.last_work = time.monotonic()
            case PromptScored():
                if (scored := self._inside.get(message.request_id)) is not None:
                    scored.prompt.extend(message.tokens)
            case MediaRead():
                if message.request_id in self._inside:
                    self._on_media_read(message.request_id, message.names)
            case Finished():
                self._on_finished(message)
            case EngineReady():
                self.info = message
                self.last_token = self.last_work = time.monotonic()  # of its warm-up
                self._state.ready()
                self._gate.offer()
                return True
        return False

    def on_unavailable(self) -> None:
        self._state.down()

    def on_reaped(self) -> None:
        self._state.lost()
        streams = list(self._inside.values())
        self._inside.clear()
        self.stats = None
        for stream in streams:
            stream.end(EngineDied())
        if self.crash_looping:
            self._gate.fail(EngineDied(), lambda _: True)

    def renewal_reason(self) -> None:
        """An engine is replaced only when it ended."""

    def hang_reason(self, silent: float) -> str | None:
        pulse = self._pulse
        if pulse is None:
            return None
        if self.unanswered >= UNANSWERED:
            return f"{self.unanswered} requests for one token in a row without one"
        allowed = self._step_seconds + SECONDS_PER_TOKEN * pulse.step_tokens + SECONDS_PER_PATCH * pulse.step_patches
        allowed += SECONDS_PER_PAIR * pulse.step_pairs
        spent = pulse.step_seconds + silent
        return f"{spent:.0f} s in one step" if spent > allowed else None

    def _on_step_done(self, step: StepDone) -> None:
        self.stats = step.stats
        self.last_work = time.monotonic()
        if step.tokens:
            self.last_token = self.last_work
        self._on_step(step)
        for event in step.tokens:
            stream = self._inside.get(event.request_id)
            if stream is not None:
                stream.put(event)

    def _on_finished(self, message: Finished) -> None:
        stream = self._inside.pop(message.request_id, None)
        if stream is not None:
            stream.end(EngineFailed(message.message, message.code) if message.reason == "failed" else None)
            self._gate.offer()
        if not self._inside and self.stats is not None:  # an idle engine takes no step that would say so
            nothing = {"running": 0, "waiting": 0, "kv_blocks_used": 0, "embedding_bytes": 0}
            self.stats = msgspec.structs.replace(self.stats, **nothing)

    async def _send(self, message: Generate | Abort) -> None:
        """A dead engine is reported by on_reaped, not here."""
        if self._state.child is None:
            return
        try:
            await self._state.child.channel.send(message)
        except ChannelClosed:
            return
        except ChannelError as error:
            failed = Finished(request_id=message.request_id, reason="failed", message=str(error), code="internal")
            self._on_finished(failed)

    def _take(self, waiting: Sequence[object]) -> tuple[object, bool] | None:
        """The first who came is the next."""
        if not self.up or self.full:
            return None
        self._places += 1
        return waiting[0], True

    def _put_back(self, place: bool) -> None:
        self._places -= 1

    async def _enter(self) -> None:
        """Return with a right to a place, which the caller uses before it awaits anything. Raises EngineDied."""
        while True:
            self._put_back(await self._gate.enter(object()))
            if self.up:  # else it died between the offer and now
                return
