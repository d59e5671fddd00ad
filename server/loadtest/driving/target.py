"""What is asked of the target besides answers: its model, its metrics before, during and after, its shared memory."""

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import anyio
import msgspec

from server.loadtest.options import Options
from server.loadtest.results.leaks import Snapshot, idle, parse_metrics, watched
from server.loadtest.wire.connection import ConnectionFailed, ConnectionPool, Response

LEASED = re.compile(r"[0-9a-f]{11}|.*\.paths")  # names in a pool's directory that a request holds
MOST_PAGE = 4 << 20  # bytes of a page that is asked for besides answers
PAGE_SECONDS = 10.0
MOST_NAME = 512  # characters of a model's


class TargetError(Exception):
    """The target cannot be tested; the message is one line.

    no_server: none listens there; answers: it is, and answers with errors. Neither: it is asked in the wrong way.
    """

    def __init__(self, message: str, *, no_server: bool = False, answers: bool = False) -> None:
        super().__init__(message)
        self.no_server, self.answers = no_server, answers


class Target:
    """One server, asked over connections of its own."""

    def __init__(self, options: Options, *, started: float) -> None:
        """started: zero of the snapshots' times, by perf_counter. Raises ValueError where the address is none."""
        self._options = options
        self._started = started
        self._pool = ConnectionPool(options.url, insecure=options.insecure, most_body=MOST_PAGE)

    async def get(self, path: str) -> tuple[int, str]:
        """Status and body. Raises ConnectionFailed."""
        page = Response()
        request = self._pool.request("GET", path, self._options.headers())
        try:
            with anyio.fail_after(PAGE_SECONDS):  # Python 3.11's wait_for loses a cancellation that meets the answer
                await self._pool.exchange(request, page)
        except TimeoutError:
            raise ConnectionFailed(f"no answer to GET {path} within {PAGE_SECONDS:g} s") from None
        finally:
            self._pool.close()  # the server may end a connection that waits for the next look, and nothing is resent
        return page.status, b"".join(page.parts).decode("utf-8", "replace")

    async def model(self) -> str | None:
        """The first model that it lists; None where it lists none. Raises TargetError where nobody answers."""
        try:
            status, text = await self.get("/v1/models")
        except ConnectionFailed as error:
            raise TargetError(f"no server at {self._pool.host}:{self._pool.port}: {error}", no_server=True) from None
        if status in (401, 403):
            raise TargetError(f"the server wants a key: GET /v1/models is a {status} (--api-key, --api-key-file)")
        try:
            name = msgspec.json.decode(text)["data"][0]["id"] if status == 200 else None
        except (msgspec.MsgspecError, RecursionError, LookupError, TypeError):
            return None
        return name if isinstance(name, str) and len(name) <= MOST_NAME else None

    async def vanished(self) -> bool:
        """Whether it answers no more, whatever it would say."""
        try:
            await self.get("/v1/models")
        except ConnectionFailed:
            return True
        return False

    async def snapshot(self) -> Snapshot:
        """What it holds now; without metrics where it has none or does not answer.

        Files come first: what is given back meanwhile is in both, or in the files alone, and looked at again.
        """
        root = self._options.shm_root
        files = None if root is None else held_files(root)
        metrics: dict[str, float] = {}
        if self._options.metrics != "none":
            with suppress(ConnectionFailed):
                status, text = await self.get(self._options.metrics)
                metrics = parse_metrics(text) if status == 200 else {}
        return Snapshot(perf_counter() - self._started, metrics, files)

    async def settled(self) -> Snapshot:
        """A snapshot of the idle server, or of what it is like when the time that it has for that is over."""
        deadline = perf_counter() + self._options.settle
        while True:
            snapshot = await self.snapshot()
            if (idle(snapshot) and not snapshot.files) or perf_counter() >= deadline:
                return snapshot
            await asyncio.sleep(0.1)

    async def watch(self, kept: list[Snapshot]) -> None:
        """Take a snapshot now and then, until it is cancelled."""
        while True:
            await asyncio.sleep(self._options.sample)
            snapshot = await self.snapshot()
            snapshot.metrics = watched(snapshot.metrics)
            kept.append(snapshot)


def held_files(root: Path) -> int:
    """How many files of a server's shared memory are held by requests; none where there is no such folder."""
    try:
        return sum(bool(LEASED.fullmatch(path.name)) and path.is_file() for path in root.iterdir())
    except OSError:
        return 0
