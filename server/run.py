"""The life of one server: start, serve, drain, end."""

import asyncio
import gc
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import anyio
import msgspec

from configs.serve import ServeConfig
from configs.version import version
from server.children.canary import Canary
from server.children.engine_client import EngineClient
from server.children.processes import END_SECONDS
from server.children.supervisor import StartFailed
from server.children.workers import WorkerPool
from server.descriptors import connections_at_once, raise_descriptor_limit
from server.housekeeping import Housekeeping, PagesReturned
from server.http.app import create_app, create_waiting_app
from server.http.connection.connections import Connections
from server.http.connection.http_server import LAST_BYTES_SECONDS, HttpServer
from server.http.connection.request_body import BodyBudget
from server.http.health import DownloadProgress
from server.http.middleware.keys import ApiKeys
from server.listening import (
    check_temporary_directory,
    check_tls,
    exposed,
    hosts_of,
    keys_of,
    listen,
    scheme_of,
    url_in,
    url_of,
)
from server.logs.setup import tell
from server.metrics import Metrics
from server.report import describe, describe_engine
from server.requests.model_card import ModelCard
from server.requests.request import CacheSalts
from server.requests.segments import Segments
from server.requests.service import RequestService
from server.thread_limit import threads_here
from server.traces import traces_of
from shm import Owner, Pool, disk_under, room

log = logging.getLogger("pixelferry")

T = TypeVar("T")

SETTLE_SECONDS = 3.0  # how long a drain waits for children to let go of memory that is removed anyhow
OPEN_TO_ALL = (
    "ANYBODY who reaches %s may use this server: it has no API key. Set PIXELFERRY_API_KEY or --api-key-file, or "
    "listen on 127.0.0.1 (docs/behind-a-proxy.md)"
)
FEW_FILES = (
    "the limit of open files is %d (ulimit -Hn), which leaves room for %d connections of the %d of --max-connections: "
    "raise it (docker run --ulimit nofile=65536), or lower --max-connections"
)
ON_DISK = "--shm-root %s lies on a disk (%s), to which all pictures are then written: name a place on a tmpfs"
LET_GO_SECONDS = 1.0  # for requests that are ended, to give their memory back


class Server:
    def __init__(
        self, config: ServeConfig, card: ModelCard, owner: Owner, pool_bytes: int,
        lines_dropped: Callable[[], int],
        keys: ApiKeys | None = None,
    ) -> None:  # fmt: skip
        self._config = config
        self._keys = keys
        self._owner = owner
        self._metrics = Metrics(card.name, version())
        self._traces = traces_of(config.traces, card.name, version())
        self._pool_bytes = pool_bytes
        self._segments = Segments(Pool(owner, pool_bytes))
        self._workers = WorkerPool(config, owner, self._metrics, card.max_model_len)
        self._engine = EngineClient(config, owner, self._metrics, card.max_model_len, card.largest)
        self._children = (*self._workers.children, self._engine)
        keeps = "on" in (config.engine.prefix_cache, config.engine.encoder_cache)
        self._service = RequestService(
            card,
            workers=self._workers,
            engine=self._engine,
            segments=self._segments,
            metrics=self._metrics,
            max_requests=config.http.max_requests,
            traces=self._traces,
            salts=CacheSalts(config.http.cache_scope, keeps=keeps),
        )
        self._connections = Connections(config.http)
        self._metrics.look_at(
            connections=lambda: self._connections.n, unread_bytes=lambda: self._connections.unread.total,
            lines_dropped=lines_dropped,
        )  # fmt: skip
        self._stop = asyncio.Event()
        self._stop_now = asyncio.Event()

    async def run(self, sock: socket.socket) -> None:
        """Serve on a listening socket until a signal comes. Raises StartFailed, and whatever a part of ours died of."""
        http = self._http(sock)
        loop = asyncio.get_running_loop()
        before = signal.getsignal(signal.SIGTERM)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        if getattr(before, "received", False):  # and the exception that it raised was dropped
            self._on_signal()
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup, http)
        parts = [
            *(child.run() for child in self._children),
            self._announce(sock),
            Housekeeping(self._owner.root, self._segments, self._metrics).run(),
            *self._canaries(),
        ]
        serving = asyncio.create_task(http.serve(sockets=[sock]))
        tasks = [*(asyncio.create_task(part) for part in parts), serving]
        try:
            await self._watch(tasks)
            await self._end_gracefully(http, serving)
        finally:
            await self._service.admission.end(LET_GO_SECONDS)
            for task in tasks:
                task.cancel()
            grace = 0.0 if self._stop_now.is_set() else END_SECONDS
            await asyncio.gather(*(child.end(grace) for child in self._children))
            await asyncio.wait(tasks, timeout=1)
            for task in tasks:
                if task.done() and not task.cancelled():
                    task.exception()  # seen: of two children that cannot start, the first one's error is enough
            self._segments.close()
            if self._traces is not None:
                await self._traces.close()

    async def _watch(self, tasks: "list[asyncio.Task[None]]") -> None:
        """Return when a signal comes. A part that ends by itself ends the server, with its own error."""
        stop = asyncio.create_task(self._stop.wait())
        try:
            parts: set[asyncio.Future[Any]] = {stop, self._segments.failed, *tasks}
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            if stop in done:
                return
            for part in done:
                part.result()
            raise RuntimeError("a part of the server ended by itself")
        finally:
            stop.cancel()

    async def _end_gracefully(self, http: HttpServer, serving: "asyncio.Task[None]") -> None:
        log.info("stopping: %d requests have %g s to end", self._service.admission.n_active, self._drain_seconds)
        drained = asyncio.create_task(self._drain(http, serving))
        at_once = asyncio.create_task(self._stop_now.wait())
        await asyncio.wait({drained, at_once}, return_when=asyncio.FIRST_COMPLETED)
        at_once.cancel()
        if drained.done():
            drained.result()
        drained.cancel()

    async def _drain(self, http: HttpServer, serving: "asyncio.Task[None]") -> None:
        ends = time.monotonic() + self._drain_seconds
        await self._service.admission.drain(self._drain_seconds)
        with anyio.move_on_after(ends - time.monotonic()):  # long answers and slow readers have what is left of it
            await self._answered(http)
        http.should_exit = True
        await asyncio.wait({serving}, timeout=LAST_BYTES_SECONDS + 1)
        with anyio.move_on_after(SETTLE_SECONDS):
            await self._segments.idle()

    async def _answered(self, http: HttpServer) -> None:
        """Return when no answer is being written, as a long one is after its last token, and each is taken."""
        while len(http.server_state.tasks) > self._connections.n_sending or self._connections.unread.total:
            await asyncio.sleep(0.05)

    @property
    def _drain_seconds(self) -> float:
        return self._config.http.drain_seconds

    def _on_signal(self) -> None:
        """The first one drains, the second one ends at once."""
        if self._stop.is_set():
            self._stop_now.set()
        self._stop.set()

    def _on_hangup(self, http: HttpServer) -> None:
        """Read keys and certificate again. What cannot be taken leaves what there was."""
        log.info("SIGHUP: keys and certificate are read again")
        if self._keys is not None:
            self._keys.reread(at_once=True)
        try:
            check_tls(self._config.http)  # a pair that does not fit would spoil the one that serves
            http.take_certificate()
        except (StartFailed, OSError) as error:
            log.error("%s; the last certificate goes on to count", error)

    async def _announce(self, sock: socket.socket) -> None:
        """Say when everything is up; stays, because a part that ends is a failure."""
        for child in self._children:
            await child.ready.wait()
        tell(describe_engine(self._service.ready_engine, self._service.card.max_model_len, self._pool_bytes))
        gc.collect()
        gc.freeze()  # what is there stays: a collection looks at what requests make alone, a few milliseconds
        tell(f"Pixelferry ready on {url_of(sock, scheme_of(self._config.http))}")
        await asyncio.Event().wait()

    def _canaries(self) -> Iterator[Coroutine[Any, Any, None]]:
        every, deadline = self._config.canary_seconds, self._config.canary_deadline_seconds
        if every:
            yield Canary(self._engine, every, deadline, self._metrics).run()

    def _http(self, sock: socket.socket) -> HttpServer:
        config = self._config.http
        bodies = BodyBudget(config, self._connections.clock, self._metrics.gave_way, PagesReturned())
        app = create_app(
            self._service, bodies, version=version(), keys=self._keys,
            origins=config.allowed_origins, hosts=hosts_of(config, sock), root_path=config.root_path,
            page=config.page == "on",
        )  # fmt: skip
        return HttpServer(app, config, self._connections, self._metrics)


async def while_downloading(config: ServeConfig, sock: socket.socket, work: Callable[[DownloadProgress], T]) -> T:
    """Run `work` in a thread, and answer on `sock` meanwhile how far it is. Raises what it raises, and StartFailed.

    A signal ends the wait, and not the thread, which ends with the process.
    """
    check_tls(config.http)
    most = connections_at_once(config, raise_descriptor_limit())
    own = msgspec.structs.replace(config.http, max_connections=most)
    progress, metrics, connections = DownloadProgress(), Metrics(config.model.served_name, version()), Connections(own)
    app = create_waiting_app(
        progress, metrics, BodyBudget(own, connections.clock), version(), keys=keys_of(own),
        origins=own.allowed_origins, hosts=hosts_of(own, sock), root_path=own.root_path,
        page=own.page == "on",
    )  # fmt: skip
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            tell_loop(done.set_result, work(progress))
        except BaseException as error:  # noqa: BLE001 - whoever waits raises it
            tell_loop(done.set_exception, error)

    def tell_loop(tell: Callable[[Any], None], what: object) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, what)

    with url_in(own.url_file, url_of(sock, scheme_of(own))):
        http = HttpServer(app, own, connections, metrics)
        serving = asyncio.create_task(http.serve(sockets=[sock.dup()]))  # it closes what it is given
        threading.Thread(target=run, name="download", daemon=True).start()
        parts: set[asyncio.Future[Any]] = {done, serving}
        await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        http.should_exit = True
        await serving
        return done.result()


async def serve(
    config: ServeConfig, card: ModelCard, root: Path, lines_dropped: Callable[[], int],
    sock: socket.socket | None = None,
) -> None:  # fmt: skip
    """Run one server under `root` until a signal ends it. Whatever happens, nothing of it stays in shared memory.

    lines_dropped: of its log, since the start; sock: where it listens already, which is closed in the end.

    Raises StartFailed, and shm.owner.OwnerError for a root that is not ours.
    """
    check_temporary_directory()
    check_tls(config.http)
    keys = keys_of(config.http)
    with sock or listen(config.http.host, config.http.port) as sock:
        owner = Owner.claim(root)
        try:
            # A pool larger than its file system would answer "later" to what can never fit.
            pool_bytes = min(config.shm.pool_bytes, room(root))
            threads, ranks = threads_here(config.engine.threads, config.workers), config.engine.tensor_parallel
            fits = config.engine.threads is None and ranks == 1  # ranks wait for each other in every layer
            engine = msgspec.structs.replace(config.engine, threads=threads.of_each(ranks), fits_threads=fits)
            files = raise_descriptor_limit()
            most = connections_at_once(config, files)
            if most < config.http.max_connections:
                log.warning(FEW_FILES, files, most, config.http.max_connections)
            if (disk := disk_under(root)) is not None:
                log.warning(ON_DISK, root, disk)
            http = msgspec.structs.replace(config.http, max_connections=most)
            config = msgspec.structs.replace(config, engine=engine, http=http)
            tell(describe(config, card, root, pool_bytes, threads))
            # Who started it may pass its answers on.
            if (exposed(sock) or config.parent_descriptor is not None) and not config.http.show_model_root:
                card = replace(card, root=card.name)  # no path of this machine goes to others
            if keys is None and exposed(sock):
                log.warning(OPEN_TO_ALL, config.http.host)
            with url_in(config.http.url_file, url_of(sock, scheme_of(config.http))):
                await Server(config, card, owner, pool_bytes, lines_dropped, keys).run(sock)
        finally:
            owner.close()
