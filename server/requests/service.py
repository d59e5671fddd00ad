"""RequestService.run(): one function owns a request from its id to its released segments."""

import asyncio
import functools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from model.engine.messages import Generate, SamplingParams
from server.children.background import Background
from server.children.engine_client import EngineClient, EngineDied, EngineFailed, Stream
from server.children.gate import NobodyUp
from server.children.worker_pool import WorkerPool
from server.children.worker_slot import Job, NotShort, TookTooLong, WorkerDied, WorkerSlot
from server.metrics import Metrics
from server.requests.admission import Admission
from server.requests.answer import Accept, Emit, answers_to, push
from server.requests.answer_boxes import drawing_of, not_drawn
from server.requests.checks import check_chat, check_ids, check_parameters, room_for
from server.requests.grounded_deltas import with_boxes
from server.requests.model_card import ModelCard
from server.requests.prompts import Accepted, Speller, run_prompts
from server.requests.refusal import Refusal, internal, invalid_request, took_too_long, unavailable
from server.requests.request import ChatRequest
from server.requests.sampling import within
from server.requests.segments import LOST, Segments, check_media_tokens, media_lost, without_room
from server.requests.sums import check_sums
from server.stopwatch import Stopwatch
from server.traces import Traces
from shm import NeverFits, OwnerError, PoolFull
from tokenization.chat.grounding import Box
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Drawn, Encode, Measured, Prepared, PrepareFailed, Room
from tokenization.placeholders import text_only

log = logging.getLogger("pixelferry")

ATTEMPTS = 2  # a chat whose worker died is tried once more: it may not have been the chat's fault


@dataclass(slots=True)
class RequestResources:
    """What a request has out: whoever may still touch its segments."""

    watch: Stopwatch | None = None  # of a request that is answered
    leased: bool = False
    jobs: list[tuple[WorkerSlot, Job]] = field(default_factory=list)
    stream: Stream | None = None


class RequestService:
    """What every route calls. All parts are made and supervised elsewhere."""

    def __init__(
        self,
        card: ModelCard,
        *,
        workers: WorkerPool,
        engine: EngineClient,
        segments: Segments,
        background: Background,
        metrics: Metrics,
        max_requests: int,
        traces: Traces | None = None,
    ) -> None:
        self.card = card
        self.workers = workers
        self.engine = engine
        self.segments = segments
        self.metrics = metrics
        self.traces = traces
        self._background = background
        self._speller = Speller(card.tokenizer)
        self.admission = Admission(max_requests, self._why_not)

    @property
    def max_model_len(self) -> int:
        """Tokens of one prompt with its answer: the model's length, or what the engine's whole cache holds."""
        info, limit = self.engine.info, self.card.max_model_len
        return min(limit, info.max_model_len or limit) if info else limit

    async def run(self, requests: Sequence[ChatRequest], emit: Emit, accepted: Accepted = lambda _: None) -> None:
        """Answer all prompts of one body, which are asked alike, by `emit`. Raises Refusal.

        Cancelled when the client has left or the server stops. `accepted` is called before anything is computed for
        prompts that nothing speaks against. What they share is made once.
        """
        first, room, limits = requests[0], self.max_model_len, self.card.limits
        check_parameters(first, self.card, self.engine.info)
        check_sums(requests, room, limits)
        bad_words = await self._speller.spell(first.sampling.bad_words, first.parameter("bad_words"))
        sampling = self.card.defaults.sampling(first.sampling, room, bad_words)

        def check_again(prepared: Sequence[Prepared]) -> None:
            """Now that their lengths are known."""
            lengths = [len(one.input_ids) for one in prepared]
            check_sums(requests, room, limits, lengths, sum(map(len, bad_words)))
            accepted(prepared)

        await run_prompts(functools.partial(self._run, sampling), requests, emit, check_again)

    async def _run(self, sampling: SamplingParams, request: ChatRequest, emit: Emit, accept: Accept) -> None:
        """Answer one prompt. `accept` is awaited before anything is computed for it.

        However it ends, every segment of the request is retired before the next thing happens on the pool, and lent
        again once nobody has it open.
        """
        check_chat(request, self.card, self.max_model_len)
        check_ids(request.chat, self.engine.info, request.chat_param)
        watch = Stopwatch(self.metrics, request.tally)
        resources = RequestResources(watch)
        try:
            with self.admission.enter():
                prepared = await self._prepare(request, resources)
                room = room_for(len(prepared.input_ids), self.max_model_len, request.chat_param)
                await accept(prepared)
                watch.prompt(prepared)
                if request.grounding != "none" and self.card.supports_grounding:
                    draw = functools.partial(self._draw, request, resources)
                    emit = with_boxes(emit, request, draw)
                own = within(sampling, room, request.sampling.seed)
                generate = Generate(prepared=prepared, sampling=own, scores_prompt=request.scores_prompt)
                await self._generate(request, generate, resources, emit, watch)
        except Refusal:
            watch.end("error")
            raise
        except asyncio.CancelledError:
            watch.end("abort")
            raise
        finally:
            self._release(request.id, resources)

    async def count(self, request: ChatRequest) -> Prepared:
        """The ids of a prompt: nothing is leased, or decoded but sounds and a frame of each video. Raises Refusal."""
        check_chat(request, self.card, self.max_model_len)
        resources = RequestResources()
        try:
            with self.admission.enter():
                return await self._prepare(request, resources, count_only=True)
        finally:
            self._release(request.id, resources)

    # ---- the stages of one request

    async def _prepare(
        self, request: ChatRequest, resources: RequestResources, *, count_only: bool = False
    ) -> Prepared:
        """A worker's answer; a second worker is asked when the first one dies. Ids need none. Raises Refusal."""
        if isinstance(request.chat, RawPrompt) and request.chat.ids is not None:
            return text_only(request.id, request.chat.ids)
        attempts, short = ATTEMPTS, True
        while attempts:
            attempts -= 1
            try:
                slot, job = await self._begin(request, count_only, short)
                resources.jobs.append((slot, job))
                if resources.watch is not None:
                    resources.watch.worker()
                return await self._converse(slot, job, request, resources)
            except NobodyUp:
                raise unavailable("no worker came up in time", "workers_down", retry_after=10) from None
            except NotShort:  # pictures that take long: now a worker that has time for them
                attempts, short = attempts + 1, False
            except TookTooLong as error:
                raise took_too_long(error.seconds, request.chat_param) from None
            except WorkerDied:
                log.warning("%s: its worker ended", request.id)
                if resources.leased:  # the writer is reaped, so its leases can be lent again at once
                    self.segments.retire(request.id)
                    await self.segments.settle(request.id)
        raise internal("the request could not be prepared: two workers died of it", "worker_died")

    async def _begin(self, request: ChatRequest, count_only: bool, short: bool) -> tuple[WorkerSlot, Job]:
        chat, client = request.chat, request.tally.client
        if isinstance(chat, RawPrompt):
            return await self.workers.encode(Encode(request_id=request.id, text=chat.text, opens=chat.opens), client)
        room = self._room_now()
        return await self.workers.begin(request.id, chat, client, room=room, count_only=count_only, short=short)

    def _room_now(self) -> Room:
        """What a video of this request may fill, so that it is not refused further on."""
        info = self.engine.info
        assert info is not None, "nothing is admitted before the first engine was ready"
        return Room(tokens=self.max_model_len, media_tokens=info.max_media_tokens, media_bytes=self.segments.capacity)

    async def _converse(
        self, slot: WorkerSlot, job: Job, request: ChatRequest, resources: RequestResources
    ) -> Prepared:
        """Measured -> Leases -> Prepared. Raises Refusal, WorkerDied, NotShort."""
        while True:
            match await job.next():
                case Measured() as measured:
                    names = await self._lease(job.request_id, measured, resources)
                    await self.workers.lease(slot, job, names)
                case Prepared() as prepared:
                    return prepared
                case PrepareFailed() as failed:
                    if failed.kind == "bad_request":
                        raise invalid_request(failed.message, failed.param or request.chat_param, failed.code)
                    if failed.kind == "long":
                        raise NotShort
                    log.error("%s: a worker failed: %s", job.request_id, failed.message)
                    if failed.code == LOST:
                        raise media_lost()
                    raise internal("the request could not be prepared")

    async def _lease(self, request_id: str, measured: Measured, resources: RequestResources) -> tuple[str, ...]:
        if not measured.nbytes:
            return ()
        info = self.engine.info
        assert info is not None, "nothing is admitted before the first engine was ready"
        check_media_tokens(measured, info.max_media_tokens)
        if resources.leased:  # measured again: whoever wrote to the earlier leases has let go of them
            self.segments.retire(request_id)
            await self.segments.settle(request_id)
        resources.leased = True
        try:
            return await self.segments.lease(request_id, measured.nbytes)
        except OwnerError as error:
            await self.segments.look_after()
            raise without_room(error, measured) from None
        except (PoolFull, NeverFits) as error:
            raise without_room(error, measured) from None

    async def _generate(
        self, request: ChatRequest, generate: Generate, resources: RequestResources, emit: Emit, watch: Stopwatch
    ) -> None:
        answers = answers_to(request, self.card.tokenizer)
        try:
            stream = resources.stream = await self.engine.submit(generate)
            watch.started()
            n_left = len(answers)
            while n_left:
                events = await stream.next()
                if not events:
                    raise internal("the engine ended this request before its last token")
                deltas = push(answers, events, stream.prompt)
                stream.prompt = []
                watch.tokens(sum([len(delta.tokens) for delta in deltas]))
                for delta in deltas:
                    if delta.finish is not None:
                        n_left -= 1
                        if not n_left:
                            watch.end(delta.finish)
                        elif delta.cut:
                            self.engine.drop(stream, delta.index)
                    await emit(generate.prepared, delta)
                    watch.delivered()
        except NobodyUp:
            raise unavailable("the engine did not come up in time", "engine_down", retry_after=10) from None
        except EngineDied:
            raise unavailable("the engine ended while it answered this request", "engine_died") from None
        except EngineFailed as error:
            if error.code == "nothing_allowed":
                message = "no token is left that may be drawn: allowed_token_ids and the other rules exclude each other"
                raise invalid_request(message, request.parameter("allowed_token_ids")) from None
            log.error("%s: the engine failed: %s", request.id, error)
            if error.code == LOST:
                raise media_lost() from None
            raise internal("the engine could not answer this request") from None

    async def _draw(self, request: ChatRequest, resources: RequestResources, boxes: tuple[Box, ...]) -> Drawn:
        """The picture with its boxes, by a worker. What cannot be drawn is a note: the answer itself is good."""
        try:
            slot, job = await self.workers.draw(drawing_of(request.id, request.chat, boxes), request.tally.client)
            resources.jobs.append((slot, job))
            drawn = await job.next()
        except (NobodyUp, WorkerDied):
            return not_drawn(request.id, None)
        return drawn if isinstance(drawn, Drawn) else not_drawn(request.id, drawn)

    def _release(self, request_id: str, resources: RequestResources) -> None:
        """Let go of everything. Nothing is awaited here, so that nothing can come between."""
        for slot, job in resources.jobs:
            if not job.ended.done():
                self.workers.abandon(slot, job)
        if resources.stream is not None:
            self.engine.leave(resources.stream)
        if resources.leased:
            self.segments.retire(request_id)
            self._background.spawn(self._settle(request_id, resources))

    async def _settle(self, request_id: str, resources: RequestResources) -> None:
        """Wait until writer and reader have let go, or are reaped; then the memory is free."""
        for _, job in resources.jobs:
            await job.ended
        if resources.stream is not None:
            await resources.stream.ended
        await self.segments.settle(request_id)

    def _why_not(self) -> Refusal | None:
        """Nothing is taken before the first engine was ready; later a dead one is waited for, unless it fails again."""
        if self.engine.info is None:
            return unavailable("the model is still loading", "loading", retry_after=2)
        if self.engine.crash_looping or self.workers.crash_looping:
            return unavailable("a process that this server needs fails again and again", "broken", retry_after=10)
        return None
