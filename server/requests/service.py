"""RequestService.run(): one function owns a request from its id to its released segments. Knows no HTTP."""

import asyncio
import logging
from dataclasses import dataclass, field, replace

from model.engine.messages import Generate
from server.children.background import Background
from server.children.engine_client import Engine, EngineDied, EngineFailed, Stream
from server.children.worker_pool import Job, WorkerDied, Workers, WorkerSlot
from server.metrics import Metrics, Stopwatch
from server.requests.admission import Admission
from server.requests.answer import Accepted, Answers, Sink
from server.requests.grounding import Grounded, Grounding, boxes_of, drawing_of, not_drawn
from server.requests.model_card import Served
from server.requests.refusal import Refusal, internal, invalid_request, overloaded, unavailable
from server.requests.sampling import Wishes
from server.requests.segments import Segments, check_media_tokens, never_fits
from shm import NeverFits, PoolFull
from tokenization.chat.parts import Chat
from tokenization.messages import Drawn, Measured, Prepared, PrepareFailed

log = logging.getLogger("pixelferry")

ATTEMPTS = 2  # a chat whose worker died is tried once more: it may not have been the chat's fault


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One accepted chat. `id` is ours, never the client's."""

    id: str
    chat: Chat
    field: str  # "messages" or "inputs": what an error about the whole chat names
    wishes: Wishes
    grounding: Grounding = "none"

    def parameter(self, name: str) -> str:
        """Where a parameter of sampling stands in the body."""
        return f"parameters.{name}" if self.field == "inputs" else name


@dataclass(slots=True)
class Hold:
    """What a request has out: whoever may still touch its segments."""

    leased: bool = False
    jobs: list[tuple[WorkerSlot, Job]] = field(default_factory=list)
    stream: Stream | None = None


class RequestService:
    """What every route calls. All parts are made and supervised elsewhere."""

    def __init__(
        self,
        served: Served,
        *,
        workers: Workers,
        engine: Engine,
        segments: Segments,
        background: Background,
        metrics: Metrics,
        max_requests: int,
    ) -> None:
        self.served = served
        self.workers = workers
        self.engine = engine
        self.segments = segments
        self.metrics = metrics
        self._background = background
        self.admission = Admission(max_requests, self._why_not)

    @property
    def max_model_len(self) -> int:
        """Tokens of one prompt with its answer: the model's length, or what the engine's whole cache holds."""
        facts, limit = self.engine.facts, self.served.max_model_len
        return min(limit, facts.max_model_len or limit) if facts else limit

    async def run(self, request: ChatRequest, sink: Sink) -> None:
        """Answer one chat into `sink`. Raises Refusal. Cancelled when the client has left or the server stops.

        However it ends, every segment of the request is retired before the next thing happens on the pool, and lent
        again once nobody has it open.
        """
        self.check(request.chat)
        self.check_parameters(request)
        if request.grounding == "drawn" and not self.served.grounds:
            raise invalid_request(
                "this model's answers hold no boxes", "parameters.draw_boxes", "unsupported_parameter"
            )
        watch = self.metrics.watch()
        hold = Hold()
        try:
            with self.admission.enter():
                prepared = await self._prepare(request, hold)
                room = self._room(request, prepared)
                watch.prompt(len(prepared.input_ids), prepared.seconds)
                await sink.accept(accepted(prepared))
                await self._generate(request, prepared, room, hold, sink, watch)
        except Refusal as error:
            watch.failed(error.code if error.kind == "overloaded" else None)
            raise
        except asyncio.CancelledError:
            watch.end("abort")
            raise
        finally:
            self._release(request.id, hold)

    async def count(self, request: ChatRequest) -> Prepared:
        """The ids of a chat: nothing is leased, or decoded but sounds and a frame of each video. Raises Refusal."""
        self.check(request.chat)
        hold = Hold()
        try:
            with self.admission.enter():
                return await self._prepare(request, hold, count_only=True)
        finally:
            self._release(request.id, hold)

    def check(self, chat: Chat) -> None:
        """What can be known without opening anything. Raises Refusal."""
        for medium in chat.media:  # how many may be is for the worker to say: a model's window may drop some
            if medium.kind not in self.served.modalities:
                taken = ", ".join(["text", *sorted(self.served.modalities)])
                message = f"this model does not take {medium.kind} (it takes {taken})"
                raise invalid_request(message, medium.where, "unsupported_modality")

    def check_parameters(self, request: ChatRequest) -> None:
        """What depends on this server and this model. Raises Refusal."""
        wishes, facts = request.wishes, self.engine.facts
        if wishes.n > self.served.max_n:
            raise invalid_request(f"at most {self.served.max_n} answers to one chat", request.parameter("n"))
        for name, ids in (
            ("logit_bias", [token for token, _ in wishes.logit_bias]),
            ("stop_token_ids", wishes.stop_token_ids),
        ):
            if facts is not None and ids and max(ids) >= facts.vocab_size:
                message = f"the vocabulary of this model has the ids 0 to {facts.vocab_size - 1}"
                raise invalid_request(message, request.parameter(name))

    # ---- the stages of one request

    async def _prepare(self, request: ChatRequest, hold: Hold, *, count_only: bool = False) -> Prepared:
        """A worker's answer; a second worker is asked when the first one dies. Raises Refusal."""
        for _ in range(ATTEMPTS):
            try:
                slot, job = await self.workers.begin(request.id, request.chat, count_only=count_only)
                hold.jobs.append((slot, job))
                return await self._converse(slot, job, request, hold)
            except WorkerDied:
                log.warning("%s: its worker ended", request.id)
                if hold.leased:  # the writer is reaped, so its leases can be lent again at once
                    self.segments.retire(request.id)
                    await self.segments.settle(request.id)
        raise internal("the request could not be prepared: two workers died of it", "worker_died")

    async def _converse(self, slot: WorkerSlot, job: Job, request: ChatRequest, hold: Hold) -> Prepared:
        """Measured -> Leases -> Prepared. Raises Refusal, WorkerDied."""
        while True:
            match await job.next():
                case Measured() as measured:
                    names = await self._lease(job.request_id, measured, hold)
                    await self.workers.lease(slot, job, names)
                case Prepared() as prepared:
                    return prepared
                case PrepareFailed() as failed:
                    if failed.kind == "bad_request":
                        raise invalid_request(failed.message, failed.param or request.field, failed.code)
                    log.error("%s: a worker failed: %s", job.request_id, failed.message)
                    raise internal("the request could not be prepared")

    async def _lease(self, request_id: str, measured: Measured, hold: Hold) -> tuple[str, ...]:
        if not measured.nbytes:
            return ()
        facts = self.engine.facts
        assert facts is not None, "nothing is admitted before the first engine was ready"
        check_media_tokens(measured, facts.max_media_tokens)
        if hold.leased:  # measured again: whoever wrote to the earlier leases has let go of them
            self.segments.retire(request_id)
            await self.segments.settle(request_id)
        hold.leased = True
        try:
            return await self.segments.lease(request_id, measured.nbytes)
        except PoolFull as error:
            raise overloaded(
                "shared memory is full of other requests' media", "memory_full", error.retry_after
            ) from None
        except NeverFits:
            raise never_fits(measured) from None

    def _room(self, request: ChatRequest, prepared: Prepared) -> int:
        """Tokens that the answer may have. Raises Refusal when there are none."""
        n, limit = len(prepared.input_ids), self.max_model_len
        if n >= limit:
            message = f"the prompt has {n} tokens; with at least one token of answer this server takes {limit}"
            raise invalid_request(message, request.field, "context_length_exceeded")
        return limit - n

    async def _generate(
        self, request: ChatRequest, prepared: Prepared, room: int, hold: Hold, sink: Sink, watch: Stopwatch
    ) -> None:
        sampling = self.served.defaults.sampling(request.wishes, room)
        generate = Generate(
            request_id=request.id,
            input_ids=prepared.input_ids,
            media=prepared.media,
            positions=prepared.positions,
            position_delta=prepared.position_delta,
            sampling=sampling,
        )
        answers = Answers(self.served.codec, request.wishes)
        try:
            stream = hold.stream = await self.engine.submit(generate)
            watch.started()
            while not answers.complete():
                deltas = answers.push(await stream.next())
                watch.tokens(sum(len(delta.tokens) for delta in deltas))
                for delta in deltas:
                    if delta.finish is not None:
                        if answers.complete():
                            watch.end(delta.finish)
                        elif delta.cut:
                            self.engine.drop(stream, delta.index)
                        grounded = await self._ground(answers.text(delta.index), request, prepared, hold)
                        delta = replace(delta, grounded=grounded)
                    await sink.write(delta)
        except EngineDied:
            raise unavailable("the engine ended while it answered this request", "engine_died") from None
        except EngineFailed as error:
            log.error("%s: the engine failed: %s", request.id, error)
            raise internal(failure_text(error), error.code or "internal") from None

    async def _ground(self, text: str, request: ChatRequest, prepared: Prepared, hold: Hold) -> Grounded | None:
        """What the answer points at, where the model points and the request asks; None elsewhere."""
        if request.grounding == "none" or not self.served.grounds:
            return None
        boxes = boxes_of(text, request.chat, prepared)
        if request.grounding == "boxes":
            return Grounded(boxes=boxes)
        if not boxes:
            return Grounded(boxes=(), drawn=Drawn(request_id=request.id, picture="", notes=()))
        try:
            slot, job = await self.workers.draw(drawing_of(request.id, request.chat, boxes))
            hold.jobs.append((slot, job))
            drawn = await job.next()
        except WorkerDied:
            return Grounded(boxes=boxes, drawn=not_drawn(request.id, None))
        if not isinstance(drawn, Drawn):
            drawn = not_drawn(request.id, drawn if isinstance(drawn, PrepareFailed) else None)
        return Grounded(boxes=boxes, drawn=drawn)

    def _release(self, request_id: str, hold: Hold) -> None:
        """Let go of everything. Nothing is awaited here, so that nothing can come between."""
        for slot, job in hold.jobs:
            if not job.ended.done():
                self.workers.abandon(slot, job)
        if hold.stream is not None:
            self.engine.leave(hold.stream)
        if hold.leased:
            self.segments.retire(request_id)
            self._background.spawn(self._settle(request_id, hold))

    async def _settle(self, request_id: str, hold: Hold) -> None:
        """Wait until writer and reader have let go, or are reaped; then the memory is free."""
        for _, job in hold.jobs:
            await job.ended
        if hold.stream is not None:
            await hold.stream.ended
        await self.segments.settle(request_id)

    def _why_not(self) -> Refusal | None:
        """Nothing is taken before the first engine was ready; later a dead one is waited for, unless it fails again."""
        if self.engine.facts is None:
            return unavailable("the model is still loading", "loading", retry_after=2)
        if self.engine.hopeless or self.workers.hopeless:
            return unavailable("a process that this server needs fails again and again", "broken", retry_after=10)
        return None


def accepted(prepared: Prepared) -> Accepted:
    """The prompt's tokens, counted."""
    of_kind = {"image": 0, "video": 0, "audio": 0}
    for item in prepared.media:
        of_kind[item.kind] += sum(length for _, length in item.spans)
    n = len(prepared.input_ids)
    return Accepted(
        prompt_tokens=n, media_tokens=sum(of_kind.values()), video_tokens=of_kind["video"],
        audio_tokens=of_kind["audio"],
    )  # fmt: skip


def failure_text(error: EngineFailed) -> str:
    """What the client is told; the engine's own words stay in the log."""
    if error.code == "media_unavailable":
        return "the media of this request were lost before the model read them"
    return "the engine could not answer this request"
