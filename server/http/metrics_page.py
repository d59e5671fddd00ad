"""The page of /metrics: what is set when somebody looks, and one page for all who ask within a tenth of a second."""

import asyncio
import logging
import time

from server.http.connection.request_body import BodyBudget
from server.http.health import readiness
from server.requests.service import RequestService

log = logging.getLogger("pixelferry.http")

PAGE_SECONDS = 0.1  # the page is made at most so often: it takes some 5 ms of the loop


class MetricsPage:
    """The page of metrics: made for all who ask for it meanwhile, and never older than the question."""

    def __init__(self, service: RequestService, bodies: BodyBudget) -> None:
        self._service = service
        self._bodies = bodies
        self._next: asyncio.Task[bytes] | None = None  # that whoever asks now gets
        self._made = 0.0  # when the last one was, by time.monotonic()

    async def made(self) -> bytes:
        if self._next is None:
            self._next = asyncio.create_task(self._make())
        return await asyncio.shield(self._next)

    async def _make(self) -> bytes:
        await asyncio.sleep(self._made + PAGE_SECONDS - time.monotonic())
        self._next, self._made = None, time.monotonic()
        await self._refresh()
        return self._service.metrics.render()

    async def _refresh(self) -> None:
        service, metrics = self._service, self._service.metrics
        metrics.set_engine(service.engine.stats if service.engine.up else None)
        try:
            metrics.set_pool(await service.segments.stats())
        except OSError as error:  # no descriptor left now: the rest is worth more than a 500
            log.error("the shared memory could not be looked at: %s", error.strerror)
        metrics.set_server(
            waiting=[
                ("worker", service.workers.n_waiting_in("media")),
                ("text_worker", service.workers.n_waiting_in("text")),
                ("picture_worker", service.workers.n_waiting_in("picture")),
                ("place", service.engine.n_waiting),
            ],
            children=[
                ("worker", service.workers.n_up, len(service.workers.slots)),
                ("text_worker", int(service.workers.text.up), 1),
                ("picture_worker", int(service.workers.picture.up), 1),
                ("engine", int(service.engine.up), 1),
            ],
            body_bytes=self._bodies.held,
            ready=readiness(service)[1] is None,
        )
