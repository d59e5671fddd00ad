"""What gateways and monitors ask: health, readiness and why not, metrics, the version, the load."""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from server.http.connection.request_body import BodyBudget
from server.http.errors import error_response
from server.http.responses import json_response
from server.logs.formats import utc
from server.metrics import Metrics
from server.request_context import context_of
from server.requests.refusal import Refusal, unavailable
from server.requests.service import RequestService

log = logging.getLogger("pixelferry.http")

LOOK = ["GET", "HEAD"]  # the HTTP server leaves the body of an answer to HEAD out
PAGE_SECONDS = 0.1  # the page of metrics is made at most so often: it takes some 5 ms of the loop


ShownState = tuple[dict[str, Any], Refusal | None]  # what /health/ready shows, and the error when it is not ready


def add_probe_routes(
    app: Starlette, state_now: Callable[[], ShownState], page: Callable[[], Awaitable[bytes]],
    n_active: Callable[[], int], version: str, metrics: Metrics,
) -> None:  # fmt: skip
    """What gateways and monitors ask every few seconds, some of it as vLLM has it; routes are looked up in order.

    page: makes that of /metrics; n_active: requests that are accepted and unfinished.
    """

    async def live(_: Request) -> Response:
        return json_response({"status": "live"})

    async def ready(request: Request) -> Response:
        state, error = state_now()
        if error is None:
            return json_response(state)
        return error_response(error, context_of(request.scope).id, state)

    async def metrics_page(_: Request) -> Response:
        return Response(await page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def lately(_: Request) -> Response:
        errors = [{**asdict(one), "time": utc(one.time)} for one in metrics.errors.newest_first()]
        slowest = [{**asdict(one), "time": utc(one.time)} for one in metrics.slow.slowest_first()]
        return json_response({"errors": errors, "slowest": slowest})

    async def version_of_server(_: Request) -> Response:
        return json_response({"version": version})

    async def load(_: Request) -> Response:
        return json_response({"server_load": n_active()})

    app.add_route("/health", live, methods=LOOK)
    app.add_route("/healthz", live, methods=LOOK)
    app.add_route("/health/live", live, methods=LOOK)
    app.add_route("/ping", ready, methods=[*LOOK, "POST"])
    app.add_route("/health/ready", ready, methods=LOOK)
    app.add_route("/metrics", metrics_page, methods=LOOK)
    app.add_route("/status/errors", lately, methods=LOOK)
    app.add_route("/version", version_of_server, methods=LOOK)
    app.add_route("/load", load, methods=LOOK)


class DownloadProgress:
    """How far the download of a model is. The hub's client tells it in threads of its own."""

    def __init__(self) -> None:
        self.done = self.total = 0  # bytes, of those that were not here before, as far as they are known
        self._lock = threading.Lock()

    def add(self, *, done: int = 0, total: int = 0) -> None:
        with self._lock:
            self.done, self.total = self.done + done, self.total + total

    @property
    def state(self) -> ShownState:
        """Of a server that waits for it."""
        shown = {"status": "downloading", "bytes_done": self.done, "bytes_total": max(self.done, self.total)}
        how_far = "{bytes_done} of {bytes_total} bytes".format_map(shown)
        return shown, unavailable(f"the model is being downloaded: {how_far}", "downloading", retry_after=10)


def readiness(service: RequestService) -> ShownState:
    """Busy is ready: a full queue answers 429 itself."""
    engine, workers = service.engine, service.workers
    error: Refusal | None = None
    if service.admission.draining:
        error = unavailable("the server is stopping", "stopping")
    elif engine.info is None:
        error = unavailable("the model is still loading", "loading")
    elif not engine.up:
        error = unavailable("the engine is being started again", "engine_down")
    elif not workers.serves:
        error = unavailable("the workers are being started again", "workers_down")
    elif engine.liveness.unanswered:
        error = unavailable("the engine gave no token to a request of the server's own", "engine_stuck")
    elif service.segments.gone:
        error = unavailable("the shared memory was removed and cannot be made again now", "shm_gone")
    state = {
        "status": error.code if error else "busy" if busy(service) else "ready",
        "engine": "up" if engine.up else "down",
        "workers_up": workers.n_up,
        "workers": len(workers.slots),
        "requests": service.admission.n_active,
        "waiting": workers.n_waiting + engine.n_waiting,
        "shm": "gone" if service.segments.gone else "crowded" if service.segments.crowded else "ok",
    }
    return state, error


def busy(service: RequestService) -> bool:
    """Whether a request that comes now waits, or is turned away because too many are here."""
    engine, workers = service.engine, service.workers
    waits = engine.n_waiting + workers.n_waiting > 0 or not workers.n_up
    return engine.full or waits or service.admission.full


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
        fetcher = service.workers.fetcher
        engine = service.engine
        metrics.set_engine(engine.stats if engine.up else None, sum(engine.kept.values()))
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
                *([("fetcher", fetcher.n_waiting)] if fetcher is not None else []),
            ],
            children=[child.snapshot for child in (*service.workers.children, engine, *engine.group.ranks)],
            body_bytes=self._bodies.held,
            ready=readiness(service)[1] is None,
        )
