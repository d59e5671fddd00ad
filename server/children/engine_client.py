"""The engine as the server sees it: who waits for a place inside, and what it says of each request that has one.

A request from `RequestService` to the socket and back: `EngineClient.submit` waits for a place and tells the engine
(supervisor.py writes it to the socket). What the engine says comes to `handle`, and is read by the request from its
Stream.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from configs.serve import ServeConfig
from model.engine.messages import (
    Abort,
    EngineReady,
    EngineStats,
    Finished,
    FromEngine,
    Generate,
    LargestItem,
    MediaKept,
    MediaRead,
    PromptScored,
    StartEngine,
    StepDone,
    Token,
    TokenEvent,
)
from model.engine.scheduling.fair_shares import FairQueue, Holdings
from server.children.processes import END_SECONDS, Child
from server.children.ranks import RankGroup
from server.children.replies import Replies
from server.children.supervisor import SupervisedChild
from server.metrics import Metrics
from shm import ChannelError, Owner

log = logging.getLogger("pixelferry")


class EngineDied(Exception):
    """The engine process ended with this request inside. It is reaped: nothing reads the request's segments."""


class EngineFailed(Exception):
    """The engine could not carry this one request out; it lives on."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(eq=False, kw_only=True)
class Stream(Replies[TokenEvent]):
    """One request, from its wait for a place to the engine's last word.

    `next` gives the tokens since the last call; none where media were read, or the request has ended. It raises
    EngineDied, EngineFailed.
    """

    client: str = ""
    expected: int = 0  # tokens that its client is charged until more is known; 0 of the canary, which takes no place
    n_tokens: int = 0  # of the prompt, and of the answers so far
    unfinished: set[int]  # answers whose last token has not been seen
    prompt: list[Token] = field(default_factory=list)  # from its second token on, where scored; whole before an answer
    scheduled: float | None = None  # when its first step began, by time.monotonic()
    n_cached: int = 0  # tokens of its prompt that were in the engine's cache then
    encode_seconds: float = 0.0  # of encoders, in the steps in which they ran over its media
    media_read: list[str] = field(default_factory=list)  # names of segments that the engine will not open again


class EngineClient(SupervisedChild):
    """The engine's place in the server, over all incarnations.

    `max_seqs` requests are inside at once, the others wait here and so survive the engine's death. A client that has
    less than its share of the places gets one all the same, up to twice as many, and one that has none always: whose
    sequences give way says the engine. Who is next among those that wait says the FairQueue, in tokens.
    """

    def __init__(
        self, config: ServeConfig, owner: Owner, metrics: Metrics, max_model_len: int,
        largest: tuple[LargestItem, ...] = (),
    ) -> None:  # fmt: skip
        start = StartEngine(
            checkpoint=str(config.model.path), engine=config.engine, shm_root=str(owner.root),
            max_model_len=max_model_len, largest=largest,
        )  # fmt: skip
        super().__init__("engine", start, FromEngine, config, owner, metrics)
        self.group = RankGroup(self, start, config, owner, metrics)
        self._line: FairQueue[Stream] = FairQueue(small_first=False)  # those that wait for a place
        self._inside: dict[str, Stream] = {}
        self._places: Holdings[str] = Holdings(config.engine.max_seqs)
        self.info: EngineReady | None = None  # of the latest incarnation that was ready
        self.stats: EngineStats | None = None
        self.kept: dict[bytes, int] = {}  # content keys that the engine said it has, and their bytes: it may be late

    @property
    def full(self) -> bool:
        """Every place is taken: whoever comes now waits."""
        return not self._places.room(1)

    @property
    def n_waiting(self) -> int:
        return len(self._line.waiting)

    async def submit(self, generate: Generate, client: str = "", asked: int = 0) -> Stream:
        """Wait for a place and hand the request over. The caller must read it to its end, or leave().

        client: whose share of the engine it takes; asked: tokens of each answer. Raises NobodyUp, and EngineDied when
        no engine can be started any more.
        """
        n, n_prompt = generate.sampling.n, len(generate.prepared.input_ids)
        stream = Stream(
            generate.prepared.request_id, client=client, expected=n_prompt + n * asked, n_tokens=n_prompt,
            unfinished=set(range(n)),
        )  # fmt: skip
        self._line.join(stream)
        try:
            await stream.wait_for_turn(self, self._config.wait_seconds)
        except BaseException:
            self._line.done(stream, None)
            self._wake_next()
            raise
        self._line.next(self._fits)
        self._places.take(client, 1)
        # A number that says nothing of the client: Python's hash of a string has a secret of this process in it.
        self.submit_at_once(stream, msgspec.structs.replace(generate, client=hash(client)))
        self._wake_next()
        return stream

    def submit_at_once(self, stream: Stream, generate: Generate) -> None:
        """Whether or not a place is free."""
        self._inside[stream.request_id] = stream
        self.tell(generate)

    def leave(self, stream: Stream) -> None:
        """The caller is done with it; an unfinished one is aborted. stream.ended says when the engine let go."""
        if stream.unfinished and not stream.ended.is_set():
            self.tell(Abort(request_id=stream.request_id))

    def drop(self, stream: Stream, index: int) -> None:
        """Of one of its answers no further token is wanted."""
        self.tell(Abort(request_id=stream.request_id, index=index))

    def handle(self, message: FromEngine) -> None:
        match message:
            case StepDone():
                self._step(message)
            case PromptScored():
                if (stream := self._inside.get(message.request_id)) is not None:
                    stream.prompt.extend(message.tokens)
            case MediaKept():
                for key in message.gone:
                    self.kept.pop(key, None)
                self.kept.update(message.kept)
            case MediaRead():
                if (stream := self._inside.get(message.request_id)) is not None:
                    stream.media_read.extend(message.names)
                    stream.wake()
            case Finished():
                if (stream := self._inside.get(message.request_id)) is not None:
                    failed = message.reason == "failed"
                    self._left(stream, EngineFailed(message.message, message.code) if failed else None)
                    self._wake_next()
                if not self._inside and self.stats is not None:  # an idle engine takes no step that would say so
                    nothing = {"running": 0, "waiting": 0, "kv_blocks_used": 0, "embedding_bytes": 0}
                    self.stats = msgspec.structs.replace(self.stats, **nothing)
            case EngineReady():
                self.info = message
                self.on_ready()
                self._wake_next()

    def _step(self, message: StepDone) -> None:
        self.stats = message.stats
        self._metrics.step(message)
        for request_id, n_cached in message.begun.items():
            if (stream := self._inside.get(request_id)) is not None and stream.scheduled is None:
                stream.scheduled, stream.n_cached = message.started, n_cached
        for request_id in message.encoded:
            if (stream := self._inside.get(request_id)) is not None:
                stream.encode_seconds += message.seconds.get("encode", 0.0)
        for event in message.tokens:
            if (stream := self._inside.get(event.request_id)) is not None:
                stream.n_tokens += 1
                if event.finish is not None:
                    stream.unfinished.discard(event.index)
                stream.put(event)

    def launch(self) -> Child:
        if not self.group.ranks:
            return super().launch()
        with self.group.launched():
            return super().launch()

    def ends_with(self) -> "Sequence[asyncio.Future[int]]":
        return self.group.attended

    async def end_others(self) -> None:
        await self.group.reap()

    def end_in_words(self, code: int) -> tuple[str | None, str]:
        return self.group.end_in_words() or super().end_in_words(code)

    async def not_launched(self, error: OSError) -> None:
        await self.group.reap()
        await super().not_launched(error)

    async def end(self, grace: float = END_SECONDS) -> None:
        await asyncio.gather(super().end(grace), self.group.end(grace))

    def on_unsendable(self, message: Generate | Abort, error: ChannelError) -> None:
        self.handle(Finished(request_id=message.request_id, reason="failed", message=str(error), code="internal"))

    def on_reaped(self) -> None:
        super().on_reaped()
        for stream in [*self._inside.values()]:
            self._left(stream, EngineDied())
        self.stats = None
        self.kept = {}
        for stream in self._line.waiting:  # they look whether any engine can be started
            stream.wake()

    def _left(self, stream: Stream, failure: Exception | None) -> None:
        del self._inside[stream.request_id]
        if isinstance(failure, EngineFailed) and failure.code == "media_evicted":
            stream.n_tokens = 0  # nothing was computed: it comes again
        if stream.expected:
            self._places.give(stream.client, 1)
            self._line.done(stream, stream.n_tokens)
        stream.end(failure)

    def may_begin(self, stream: Stream) -> bool:
        if self.crash_looping:
            raise EngineDied
        return self.up and self._line.turn(self._fits) is stream

    def seconds_down_for(self, stream: Stream) -> float:
        return self.seconds_down

    def _fits(self, stream: Stream) -> bool:
        places = self._places
        if places.room(1):
            return True
        if not places[stream.client]:
            return True
        return places.within(stream.client, 1) and places.total < 2 * places.capacity

    def _wake_next(self) -> None:
        if (stream := self._line.turn(self._fits)) is not None:
            stream.wake()
