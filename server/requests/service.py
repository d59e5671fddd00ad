"""RequestService.run(): one function owns a request from its id to its released segments."""

import asyncio
import logging
import secrets
from collections.abc import Sequence

from msgspec.structs import replace

from model.engine.messages import EngineReady, Generate, SamplingParams
from server.children.engine_client import EngineClient, EngineDied, EngineFailed
from server.children.replies import NobodyUp
from server.children.workers import WorkerDied, WorkerJob, WorkerPool
from server.metrics import Metrics
from server.request_context import LIGHT_BYTES, ModelTimings
from server.requests.admission import Admission
from server.requests.answer import Answers, Emit, Grounded, boxes_of, drawing_of, not_drawn
from server.requests.checks import check_chat, check_parameters, check_sums, check_thought, room_for
from server.requests.grammars import Grammars
from server.requests.model_card import ModelCard
from server.requests.prompts import Accepted, AllPrepared, Speller, Spellings, run_together
from server.requests.refusal import Refusal, internal, invalid_request, loading, took_too_long, unavailable
from server.requests.request import CacheSalts, ChatRequest
from server.requests.segments import LOST, RequestResources, Segments, media_lost, not_generated, too_many_tokens
from server.traces import Traces
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Drawn, Encode, Job, Leases, Measured, Prepare, Prepared, PrepareFailed, Room
from tokenization.placeholders import text_only

log = logging.getLogger("pixelferry")

ASSUMED_TOKENS = 256  # of an answer that may have any length, as far as its client is charged before it is known
ATTEMPTS = 2  # a chat whose worker died is tried once more: it may not have been the chat's fault


class RequestService:
    """What every route calls. All parts are made and supervised elsewhere."""

    def __init__(
        self,
        card: ModelCard,
        *,
        workers: WorkerPool,
        engine: EngineClient,
        segments: Segments,
        metrics: Metrics,
        max_requests: int,
        traces: Traces | None = None,
        salts: CacheSalts,
    ) -> None:
        self.card = card
        self.workers = workers
        self.engine = engine
        self.segments = segments
        self.metrics = metrics
        self.traces = traces
        self._speller = Speller(card.tokenizer)
        self._salts = salts
        self.admission = Admission(max_requests, self._why_not, segments.pool.capacity, metrics.gave_way)
        self._grammars = Grammars(workers, card.tokenizer, salts)

    @property
    def max_model_len(self) -> int:
        """Tokens of one prompt with its answer: the model's length, or what the engine's whole cache holds."""
        info, limit = self.engine.info, self.card.max_model_len
        return min(limit, info.max_model_len or limit) if info else limit

    @property
    def ready_engine(self) -> EngineReady:
        """What the latest engine that was ready said of itself. Raises Refusal before the first one was."""
        if self.engine.info is None:
            raise loading()
        return self.engine.info

    async def run(self, requests: Sequence[ChatRequest], emit: Emit, accepted: Accepted | None = None) -> None:
        """Answer all prompts of one body, which are asked alike, by `emit`. Raises Refusal.

        The answers of the i-th have the indices from n i on. Cancelled when the client has left or the server stops.
        `accepted` is called before anything is computed for prompts that nothing speaks against. What they share is
        made once.
        """
        first, room, limits = requests[0], self.max_model_len, self.card.limits
        check_parameters(first, self.card, self.ready_engine)
        check_sums(requests, room, limits)
        for request in requests:  # nobody gives way, and no worker begins, for what is never taken
            check_chat(request, self.card, room, self.ready_engine)
        bad_words: Spellings = ()
        if first.sampling.bad_words:
            bad_words = await self._speller.spell(first.sampling.bad_words, first.parameter("bad_words"))
        sampling = self.card.defaults.sampling(first.sampling, room, bad_words)
        if (refused := self.admission.refusal(first.context.client, len(requests))) is not None:
            raise refused
        others = AllPrepared(requests, room, limits, bad_words, accepted)
        if len(requests) == 1:
            await self._run(first, 0, sampling, others, emit)
        else:
            runs = [self._run(request, i, sampling, others, emit) for i, request in enumerate(requests)]
            await run_together(runs)

    async def _run(
        self, request: ChatRequest, i: int, sampling: SamplingParams, others: AllPrepared, emit: Emit
    ) -> None:
        """Answer the i-th prompt of a body. The `others` are waited for before anything is computed for it.

        However it ends, every segment of the request is retired before the next thing happens on the pool, and lent
        again once nobody has it open.
        """
        timings = ModelTimings(self.metrics, request.context)
        resources = RequestResources(request.id, self.workers, self.engine, self.segments, self.admission)
        try:
            with self.admission.enter(request.context) as resources.place:
                grammar = None
                if request.grammar is not None:
                    grammar = await others.form(i, request.grammar, self._grammars)
                    timings.waits_for_worker()
                asked, request = request, await resources.with_media(request, timings)
                if (body := request.context.body) is not None and body.held > LIGHT_BYTES:
                    resources.pin(asked, request)
                prepared = await self._prepare(request, resources, timings)
                room = room_for(len(prepared.input_ids), self.max_model_len, request.chat_param)
                await others.wait(i, prepared)
                timings.prompt(prepared)
                seed = secrets.randbits(63) if request.sampling.seed is None else request.sampling.seed
                thought_end = None
                if self.card.thoughts is not None:
                    thought_end = self.card.thought_end(request.chat, prepared.input_ids)
                if request.wants_thoughts:
                    check_thought(request, thought_end)
                own = replace(sampling, max_tokens=min(sampling.max_tokens, room), seed=seed, thought_end=thought_end)
                generate = Generate(
                    prepared=prepared, sampling=own, grammar=grammar, scores_prompt=request.scores_prompt,
                    salt=self._salts.of(request),
                )  # fmt: skip
                answers = Answers(request, self.card.tokenizer, i * sampling.n, thought_end)
                if not await self._generate(request, generate, resources, answers, emit, timings):
                    await resources.free_leases()
                    prepared = await self._prepare(request, resources, timings, with_kept=False)
                    generate = replace(generate, prepared=prepared)
                    if not await self._generate(request, generate, resources, answers, emit, timings):
                        raise internal("the engine asked twice for the media of this request")
        except asyncio.CancelledError:
            timings.end("abort")
            raise
        except BaseException:  # a defect of ours, too
            timings.end("error")
            raise
        finally:
            resources.release()

    async def count(self, request: ChatRequest) -> Prepared:
        """The ids of a prompt: nothing is leased, or decoded but sounds and a frame of each video. Raises Refusal."""
        check_chat(request, self.card, self.max_model_len, self.ready_engine)
        resources = RequestResources(request.id, self.workers, self.engine, self.segments, self.admission)
        try:
            with self.admission.enter(request.context) as resources.place:
                request = await resources.with_media(request)
                return await self._prepare(request, resources, count_only=True)
        finally:
            resources.release()

    # ---- the stages of one request

    async def _prepare(
        self, request: ChatRequest, resources: RequestResources, timings: ModelTimings | None = None, *,
        count_only: bool = False, with_kept: bool = True,
    ) -> Prepared:  # fmt: skip
        """A worker's answer; a second worker is asked when the first one dies. Ids need none. Raises Refusal.

        with_kept: media whose embeddings the engine keeps get no lease.
        """
        chat = request.chat
        if isinstance(chat, RawPrompt) and chat.ids is not None:
            return text_only(request.id, chat.ids)
        attempts, short = ATTEMPTS, True
        while attempts:
            attempts -= 1
            message: Job
            if isinstance(chat, RawPrompt):
                message = Encode(request_id=request.id, text=chat.text, opens=chat.opens)
            else:
                media_tokens, media_bytes = self.ready_engine.max_media_tokens, self.segments.pool.capacity
                room = Room(tokens=self.max_model_len, media_tokens=media_tokens, media_bytes=media_bytes)
                salt = b"" if count_only or not self._salts.keeps else self._salts.of(request)
                message = Prepare(request_id=request.id, chat=chat, count_only=count_only, room=room, salt=salt)
            try:
                job = await resources.job(message, request.context.client, short=short)
                if timings is not None:
                    timings.worker()
                prepared = await self._converse(job, request, resources, with_kept)
                if prepared is not None:
                    return prepared
                attempts, short = attempts + 1, False  # pictures that take long: now a worker that has time for them
            except NobodyUp:
                raise unavailable("no worker came up in time", "workers_down", retry_after=10) from None
            except WorkerDied as died:
                if died.exceeded is not None:  # another would fare no better
                    raise took_too_long(died.exceeded, died.param or request.chat_param) from None
                log.warning("%s: its worker ended", request.id)
                await resources.free_leases()
        raise internal("the request could not be prepared: two workers died of it", "worker_died")

    async def _converse(
        self, job: WorkerJob, request: ChatRequest, resources: RequestResources, with_kept: bool
    ) -> Prepared | None:
        """Measured -> Leases -> Prepared. None: the worker of pictures hands it back. Raises Refusal, WorkerDied."""
        while True:
            for answer in await job.next():
                if isinstance(answer, Prepared):
                    return answer
                if isinstance(answer, Measured):
                    limit = self.ready_engine.max_media_tokens
                    if sum(answer.n_tokens) > limit:
                        raise too_many_tokens(answer, limit)
                    names = await resources.lease(answer, self.engine.kept if with_kept else ())
                    assert job.worker is not None  # where it died meanwhile, `next` says so
                    job.worker.tell(Leases(request_id=request.id, names=names))
                    continue
                assert isinstance(answer, PrepareFailed)
                if answer.kind == "bad_request":
                    raise invalid_request(answer.message, answer.param or request.chat_param, answer.code)
                if answer.kind == "long":
                    return None
                log.error("%s: a worker failed: %s", job.request_id, answer.message)
                raise media_lost() if answer.code == LOST else internal("the request could not be prepared")

    async def _generate(
        self, request: ChatRequest, generate: Generate, resources: RequestResources, answers: Answers, emit: Emit,
        timings: ModelTimings,
    ) -> bool:  # fmt: skip
        """From the engine's tokens to what `emit` is given: a delta for each of a stream, else one for each answer.

        False, before the first token, where it came for embeddings that the engine has no more.
        """
        try:
            asked = ASSUMED_TOKENS if request.sampling.max_tokens is None else generate.sampling.max_tokens
            stream = resources.stream = await self.engine.submit(generate, request.context.client, asked)
            while answers.n_unfinished > 0:
                events = await stream.next()
                resources.progress(stream, request.context, begun=bool(events))
                if not events:
                    if stream.ended.is_set():
                        raise internal("the engine ended this request before its last token")
                    continue
                timings.scheduled(stream.scheduled, resources.place.share, stream.n_cached, stream.encode_seconds)
                n_before = answers.n_tokens
                deltas = answers.push(events, stream.prompt)
                stream.prompt = []
                timings.tokens(0 if request.prompt_only else answers.n_tokens - n_before)
                for delta in deltas:
                    if delta.finish is not None:
                        if answers.n_unfinished == 0 and delta is deltas[-1]:
                            timings.end("stop" if delta.finish == "tool_calls" else delta.finish)
                        elif delta.cut:
                            self.engine.drop(stream, delta.index - answers.first)
                        if request.grounding != "none" and self.card.supports_grounding:
                            grounded = await self._grounded(answers.text(delta), request, resources, generate.prepared)
                            delta = replace(delta, grounded=grounded)
                    await emit(generate.prepared, delta)
                    timings.delivered()
                if not deltas:  # laid by, of an answer in one piece
                    timings.delivered()
        except (NobodyUp, EngineDied, EngineFailed) as error:
            if isinstance(error, EngineFailed) and error.code == "media_evicted":
                return False
            raise not_generated(error, request, begun=timings.last is not None) from None
        return True

    async def _grounded(
        self, text: str, request: ChatRequest, resources: RequestResources, prepared: Prepared
    ) -> Grounded:
        """The boxes beside a whole answer, and on request the picture with them drawn, by a worker.

        What cannot be drawn is a note: the answer itself is good.
        """
        boxes = boxes_of(text, request.chat, prepared)
        if request.grounding != "drawn":
            return Grounded(boxes=boxes)
        if not boxes:
            return Grounded(boxes=boxes, drawn=Drawn(request_id=request.id, picture="", notes=()))
        try:
            job = await resources.job(drawing_of(request.id, request.chat, boxes), request.context.client)
            (answer,) = await job.next()
        except (NobodyUp, WorkerDied):
            return Grounded(boxes=boxes, drawn=not_drawn(request.id, None))
        drawn = answer if isinstance(answer, Drawn) else not_drawn(request.id, answer)
        return Grounded(boxes=boxes, drawn=drawn)

    def _why_not(self) -> Refusal | None:
        """Nothing is taken before the first engine was ready; later a dead one is waited for, unless it fails again."""
        if self.engine.info is None:
            return loading()
        if self.engine.crash_looping or self.workers.crash_looping:
            return unavailable("a process that this server needs fails again and again", "broken", retry_after=10)
        return None
