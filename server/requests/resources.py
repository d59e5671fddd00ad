"""What one request has out, and how all of it is let go of: its jobs, its stream, the segments that these may touch."""

from server.children.engine_client import EngineClient, Stream
from server.children.workers import WorkerJob, WorkerPool
from server.requests.background import Background
from server.requests.segments import Segments, without_room
from shm import NeverFits, OwnerError, PoolFull
from tokenization.messages import Job, Measured


class RequestResources:
    """Of one request, which calls `release` however it ends."""

    def __init__(
        self, request_id: str, workers: WorkerPool, engine: EngineClient, segments: Segments, background: Background
    ) -> None:
        self._request_id = request_id
        self._workers = workers
        self._engine = engine
        self._segments = segments
        self._background = background
        self._leased = False
        self._jobs: list[WorkerJob] = []
        self.stream: Stream | None = None

    async def job(self, message: Job, client: str, *, short: bool = True) -> WorkerJob:
        """One that a worker has begun. Raises NobodyUp, WorkerDied."""
        job = await self._workers.begin(message, client, short=short)
        self._jobs.append(job)
        return job

    async def lease(self, measured: Measured) -> tuple[str, ...]:
        """Names for what a worker has measured, once those from before are free. Raises Refusal."""
        if not measured.nbytes:
            return ()
        await self.free_leases()
        self._leased = True
        try:
            return await self._segments.lease(self._request_id, measured.nbytes)
        except OwnerError as error:
            await self._segments.look_after()
            raise without_room(error, measured) from None
        except (PoolFull, NeverFits) as error:
            raise without_room(error, measured) from None

    async def free_leases(self) -> None:
        """Whoever wrote to them has let go, or is reaped: they can be lent again at once."""
        if self._leased:
            self._segments.retire(self._request_id)
            await self._segments.settle(self._request_id)

    def media_read(self, stream: Stream) -> None:
        """The engine has its copy of these segments."""
        if stream.media_read:
            self._segments.give_back(self._request_id, stream.media_read)
            stream.media_read = []

    def release(self) -> None:
        """Let go of everything. Nothing is awaited here, so that nothing can come between."""
        for job in self._jobs:
            self._workers.cancel(job)
        if self.stream is not None:
            self._engine.leave(self.stream)
        if self._leased:
            self._segments.retire(self._request_id)
            self._background.spawn(self._free_when_ended())

    async def _free_when_ended(self) -> None:
        """Wait until writer and reader have let go, or are reaped; then the memory is free."""
        for job in self._jobs:
            await job.ended
        if self.stream is not None:
            await self.stream.ended
        await self._segments.settle(self._request_id)
