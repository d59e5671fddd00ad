"""What is asked of the target besides answers: its model, its metrics before, during and after, its shared memory."""

import asyncio
import re
import stat
from pathlib import Path
from time import perf_counter
from typing import Annotated

import msgspec

from server.loadtest.results.leaks import Snapshot, idle, parse_metrics, watched
from server.loadtest.wire.connection import Connection, ConnectionFailed, Pool, request_bytes

LEASED = re.compile(r"[0-9a-f]{11}|.*\.paths")  # names in a pool's directory that a request holds


MOST_PAGE = 4 << 20  # bytes of a page that is asked for besides answers


class TargetError(Exception):
    """The target cannot be tested; the message is one line."""


class _Listed(msgspec.Struct):
    id: Annotated[str, msgspec.Meta(max_length=512)]


class _Models(msgspec.Struct):
    data: list[_Listed]


class _Page:
    """Keeps an answer."""

    def __init__(self) -> None:
        self.status = 0
        self._parts: list[bytes] = []

    def head(self, status: int, headers: dict[str, str], at: float) -> None:
        self.status = status

    def body(self, data: bytes, at: float) -> None:
        self._parts.append(data)

    @property
    def text(self) -> str:
        return b"".join(self._parts).decode("utf-8", "replace")


class Target:
    """One server, asked over connections of its own."""

    def __init__(
        self,
        pool: Pool,
        *,
        headers: dict[str, str],
        metrics_path: str | None = "/metrics",
        shm_root: Path | None = None,
    ) -> None:
        self._pool = pool
        self._headers = headers
        self._metrics_path = metrics_path
        self._shm_root = shm_root

    async def get(self, path: str, seconds: float = 10.0) -> tuple[int, str]:
        """Status and body. Raises ConnectionFailed."""
        page = _Page()
        holders: list[Connection] = []
        request = request_bytes(self._pool.address, "GET", path, headers=self._headers)
        try:
            await asyncio.wait_for(self._pool.exchange(request, page, holders.append), seconds)
        except asyncio.TimeoutError:
            raise ConnectionFailed(f"no answer to GET {path} within {seconds:g} s") from None
        return page.status, page.text

    async def model(self) -> str | None:
        """The first model that it lists; None where it lists none. Raises TargetError where nobody answers."""
        address = self._pool.address
        try:
            status, text = await self.get("/v1/models")
        except ConnectionFailed as error:
            raise TargetError(f"no server at {address.host}:{address.port}: {error}") from None
        if status in (401, 403):
            raise TargetError(f"the server wants a key: GET /v1/models is a {status} (--api-key, --api-key-file)")
        try:
            return msgspec.json.decode(text, type=_Models).data[0].id if status == 200 else None
        except (msgspec.MsgspecError, RecursionError, IndexError):
            return None

    async def snapshot(self, started: float) -> Snapshot:
        """What it holds now; without metrics where it has none or does not answer."""
        metrics: dict[str, float] = {}
        if self._metrics_path is not None:
            try:
                status, text = await self.get(self._metrics_path)
                metrics = parse_metrics(text) if status == 200 else {}
            except ConnectionFailed:
                pass
        snapshot = Snapshot(perf_counter() - started, metrics)
        if self._shm_root is not None:
            snapshot.files, snapshot.file_bytes = held_files(self._shm_root)
        return snapshot

    async def settled(self, started: float, seconds: float) -> Snapshot:
        """A snapshot of the idle server, or of what it is like after so many seconds."""
        deadline = perf_counter() + seconds
        while True:
            snapshot = await self.snapshot(started)
            if (idle(snapshot) and not snapshot.files) or perf_counter() >= deadline:
                return snapshot
            await asyncio.sleep(0.1)

    async def watch(self, started: float, every: float, kept: list[Snapshot]) -> None:
        """Take a snapshot now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(every)
            snapshot = await self.snapshot(started)
            snapshot.metrics = watched(snapshot.metrics)
            kept.append(snapshot)


def held_files(root: Path) -> tuple[int, int]:
    """How many files of a server's shared memory are held by requests, and their bytes."""
    count = nbytes = 0
    try:
        paths = list(root.iterdir())
    except OSError:
        return 0, 0
    for path in paths:
        try:
            found = path.stat()
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and LEASED.fullmatch(path.name):
            count, nbytes = count + 1, nbytes + found.st_size
    return count, nbytes
