"""The pool's face on the event loop, and what one request has out: its segments, and whoever may touch them."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, ParamSpec, TypeVar

from msgspec.structs import force_setattr

from server.children.engine_client import EngineClient, EngineDied, EngineFailed, Stream
from server.children.replies import NobodyUp
from server.children.workers import WorkerJob, WorkerPool
from server.request_context import ModelTimings, RequestContext
from server.requests.admission import Admission, AdmittedPrompt
from server.requests.fetched_media import fetch_media
from server.requests.refusal import Refusal, internal, invalid_request, overloaded, unavailable
from server.requests.request import ChatRequest
from shm import NeverFits, OwnerError, Pool, PoolFull, PoolStats, file_bytes
from tokenization.chat.parts import Fetched, Media
from tokenization.messages import Job, Measured

log = logging.getLogger("pixelferry")

CROWDED = (
    "the shared memory below %s is full of files that are not this server's: `ls -l` on that file system shows whose; "
    "remove them, or name a directory on another one by --shm-root"
)

P = ParamSpec("P")
T = TypeVar("T")
RETRY_SECONDS = 1.0  # of one who finds others waiting for their share
TOO_LARGE = "media_too_large"
LOST = "media_unavailable"


class Segments:
    """Reserving fresh pages takes up to a second a GiB, so nothing of the pool runs on the loop.

    One thread keeps the order: a retire() that follows a lease() of a request which was cancelled meanwhile runs after
    it, and finds what it left. The first of the tasks that nobody awaits to raise ends the server, through `failed`.
    """

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="segments")
        self._tasks: set[asyncio.Future[Any]] = set()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.crowded = False  # a lease found no room last time, because files of others fill the file system
        self.gone = False  # the directory was removed, or is not private any more, and cannot be made again now

    def call(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """One of the pool's methods, behind all that were called before."""
        return asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))

    def spawn(self, work: "Coroutine[Any, Any, None] | asyncio.Future[None]") -> None:
        """What outlives whoever starts it."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Future[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.failed.done():
            self.failed.set_exception(error)

    async def idle(self) -> None:
        """Nothing that was spawned is left."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def lease(self, request_id: str, nbytes: Sequence[int]) -> tuple[str, ...]:
        """Names for that many bytes each. Raises shm.pool's PoolFull and NeverFits, and OwnerError while it is gone."""
        # Shielded: a cancelled caller must not cancel a call that retire() relies on having run or not begun.
        try:
            names = await asyncio.shield(self.call(self.pool.lease, request_id, nbytes))
        except PoolFull as error:
            if error.by_others and not self.crowded:
                log.warning(CROWDED, self.pool.root)
            self.crowded = error.by_others
            raise
        self.crowded = False
        if self.gone:
            await self.look_after()
        return names

    async def look_after(self) -> None:
        """See that the shared memory is there, and whether that is so."""
        try:
            await self.call(self.pool.keep_place)
        except OwnerError as error:
            if not self.gone:
                log.error("shared memory cannot be used, so that pictures, videos and sounds are refused: %s", error)
            self.gone = True
        else:
            if self.gone:
                log.info("shared memory can be used again")
            self.gone = False

    async def stats(self) -> PoolStats:
        return await self.call(self.pool.stats)

    def close(self) -> None:
        self._thread.shutdown()


@dataclass(slots=True, eq=False)
class RequestResources:
    """Of one request, which calls `release` however it ends."""

    request_id: str
    workers: WorkerPool
    engine: EngineClient
    segments: Segments
    admission: Admission
    place: AdmittedPrompt = field(init=False)  # from its admission on
    stream: Stream | None = None
    _jobs: list[WorkerJob] = field(default_factory=list)
    _leases: bool = False  # the pool may know of it
    _leased: dict[str, int] = field(default_factory=dict)  # bytes, by name
    _let_go: tuple[Media, ...] = ()  # when the answer begins
    _stays: int = 0  # bytes of the body, from then on

    async def with_media(self, request: ChatRequest, timings: ModelTimings | None = None) -> ChatRequest:
        """The request with its media by URL in their places, where any are fetched. Raises Refusal."""
        if self.workers.fetcher is None:
            return request
        found = await fetch_media(request, self.workers.fetcher)
        if timings is not None:
            timings.waits_for_worker()
        return found

    async def job(self, message: Job, client: str, *, short: bool = True) -> WorkerJob:
        """One that a worker has begun. Raises NobodyUp, WorkerDied."""
        job = await self.workers.begin(message, client, short=short)
        self._jobs.append(job)
        return job

    async def lease(self, measured: Measured, kept: Collection[bytes] = ()) -> tuple[str, ...]:
        """Names for what a worker has measured, once those from before are free; "" for the keys in `kept`.

        Where there is no room, somebody who has more than a share of the memory may give way. Raises Refusal.
        """
        await self.free_leases()
        found = [""] * len(measured.nbytes)
        sizes: dict[int, int] = {}  # bytes of those that get one, by their place among all media
        for i, nbytes in enumerate(measured.nbytes):
            if not measured.keys or measured.keys[i] not in kept:
                sizes[i] = nbytes
        total = sum(map(file_bytes, sizes.values()))
        while sizes:
            self._leases = True
            try:
                if not self.admission.lends(self.place, total):
                    raise PoolFull(RETRY_SECONDS)
                names = await self.segments.lease(self.request_id, tuple(sizes.values()))
            except (OwnerError, NeverFits, PoolFull) as error:
                if isinstance(error, OwnerError):
                    await self.segments.look_after()
                if not isinstance(error, PoolFull) or not await self.admission.memory_given_way(self.place, total):
                    raise without_room(error, measured.params[max(sizes, key=sizes.__getitem__)]) from None
                continue
            for i, name in zip(sizes, names, strict=True):
                found[i], self._leased[name] = name, file_bytes(sizes[i])
            self.admission.lent(self.place, total)
            break
        return tuple(found)

    async def free_leases(self) -> None:
        """Whoever wrote to them has let go, or is reaped: they can be lent again at once."""
        if self._leases:
            await self.segments.call(self.segments.pool.retire, self.request_id)
            await self.segments.call(self.segments.pool.settle, self.request_id)
            self._given_back(tuple(self._leased))

    def pin(self, asked: ChatRequest, request: ChatRequest) -> None:
        """Settle what of a body stays once its answer begins: not its media, unless boxes are drawn on them in the end.

        asked: the request before its media were fetched; both hold media. Raises Refusal.
        """
        body = request.context.body
        assert body is not None
        nbytes = body.held
        if request.grounding != "drawn":
            for medium in request.chat.media:
                for source in (medium.source, *medium.frames):
                    nbytes -= len(source.data if isinstance(source, Fetched) else source)
            self._let_go = (*asked.chat.media, *request.chat.media)
        self._stays = max(0, nbytes)
        if not body.pin(self._stays):
            message = "what this client's unfinished requests keep until they end takes half of the room for bodies"
            raise overloaded(message, "bodies_full")

    def progress(self, stream: Stream, context: RequestContext, *, begun: bool) -> None:
        """The engine has its copy of some segments, or tokens came: the answer has begun."""
        if stream.media_read:
            self.segments.spawn(self.segments.call(self.segments.pool.give_back, self.request_id, stream.media_read))
            self._given_back(stream.media_read)
            stream.media_read = []
        if not begun or context.begun:
            return
        context.begun = True
        if self._let_go:  # the engine has their embeddings until the answer ends
            for medium in self._let_go:  # in their places: other references would keep the bytes for as long
                force_setattr(medium, "source", "")
                force_setattr(medium, "frames", ("",) * len(medium.frames))
            assert context.body is not None
            context.body.keep(self._stays)

    def release(self) -> None:
        """Let go of everything. Nothing is awaited here, so that nothing can come between."""
        for job in self._jobs:
            self.workers.cancel(job)
        if self.stream is not None:
            self.engine.leave(self.stream)
        if self._leases:
            retired = self.segments.call(self.segments.pool.retire, self.request_id)
            self.segments.spawn(self._free_when_ended(retired))

    async def _free_when_ended(self, retired: "asyncio.Future[None]") -> None:
        """Wait until writer and reader have let go, or are reaped; then the memory is free."""
        await retired
        for job in self._jobs:
            await job.ended.wait()
        if self.stream is not None:
            await self.stream.ended.wait()
        await self.segments.call(self.segments.pool.settle, self.request_id)
        self._given_back(tuple(self._leased))

    def _given_back(self, names: Sequence[str]) -> None:
        self.admission.given_back(self.place, sum(self._leased.pop(name, 0) for name in names))


# ---- what came to nothing


def too_many_tokens(measured: Measured, limit: int) -> Refusal:
    """All together they have more than `limit`."""
    largest = measured.n_tokens.index(max(measured.n_tokens))
    message = (
        f"the media of this request have {sum(measured.n_tokens)} tokens, and this server keeps the embeddings of at "
        f"most {limit}; this is the largest, with {measured.n_tokens[largest]} tokens"
    )
    return invalid_request(message, measured.params[largest], TOO_LARGE)


def without_room(error: PoolFull | NeverFits | OwnerError, largest: str) -> Refusal:
    """What the client is told of media for which the pool has no room: now, or ever. largest: its field."""
    if isinstance(error, OwnerError):
        return unavailable("this server has no shared memory for media now", "shm_gone", retry_after=10)
    if isinstance(error, PoolFull):
        message = "shared memory is full of other requests' media"
        if error.by_others:
            # No path: it is the operator's, and stands in the log and in /health/ready.
            message = (
                "shared memory is full of files that are not this server's: its operator finds them by `ls -l` where "
                "its log says, or gives it another directory by --shm-root"
            )
        return overloaded(message, "memory_full", error.retry_after)
    message = "the media of this request need more shared memory than this server has; this is the largest"
    return invalid_request(message, largest, TOO_LARGE)


def media_lost() -> Refusal:
    """Somebody removed them from outside. The same request can be answered: nothing is wrong with it."""
    return unavailable("the media of this request were lost before the model read them", LOST, retry_after=1)


def not_generated(error: NobodyUp | EngineDied | EngineFailed, request: ChatRequest, *, begun: bool) -> Refusal:
    """The error of a request that the engine did not answer to its end. begun: its first token was there."""
    if isinstance(error, NobodyUp):
        return unavailable("the engine did not come up in time", "engine_down", retry_after=10)
    if isinstance(error, EngineDied):
        # Without a token it may have ended of this very request: the client decides whether to send it again.
        when = "while it answered this request" if begun else "before the first token of this request; send it again"
        return unavailable(f"the engine ended {when}", "engine_died")
    if error.code == "nothing_allowed":
        message = "no token is left that may be drawn: allowed_token_ids and the other rules exclude each other"
        return invalid_request(message, request.parameter("allowed_token_ids"))
    if error.code == "structured_output" and request.grammar is not None:
        return invalid_request(str(error), request.grammar.param, error.code)
    log.error("%s: the engine failed: %s", request.id, error)
    return media_lost() if error.code == LOST else internal("the engine could not answer this request")
