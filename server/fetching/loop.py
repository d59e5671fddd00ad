"""The loop of the process that fetches: each medium is a task of its own, and one task speaks with the server."""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from server.fetching.fetch import FetchFailed, MediaFetcher, TooLarge
from server.fetching.messages import (
    CancelFetch,
    Fetch,
    FetchedPiece,
    FetchEnded,
    FetcherPulse,
    FetcherReady,
    FetchOutcome,
    FromFetcher,
    StartFetcher,
    ToFetcher,
)
from server.fetching.target import ForbiddenUrl
from shm import AsyncChannel, Ending

log = logging.getLogger("pixelferry.fetch")

# Names that nobody answers keep their threads for seconds after their fetch has ended: so many times as many threads.
RESOLVERS = 4
BEAT_SECONDS = 0.5
REFUSED = 1  # the exit code where the server was told why
WAITING_PIECES = 16  # for the server to read them; then fetches wait


class FetchLoop:
    def __init__(self, channel: AsyncChannel[ToFetcher]) -> None:
        self._channel = channel
        self._outbox: asyncio.Queue[FromFetcher] = asyncio.Queue(WAITING_PIECES)
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Until the server goes. Raises ChannelClosed, and SystemExit for a start that it refuses."""
        start = await self._channel.recv()
        assert isinstance(start, StartFetcher)
        resolvers = ThreadPoolExecutor(RESOLVERS * start.config.at_once, thread_name_prefix="resolve")
        try:
            fetcher = MediaFetcher(start.config, start.user_agent, resolvers)
        except OSError as error:
            why = f"--media-ca: {start.config.ca} holds no certificate that can be read ({error.strerror or error})"
            await self._channel.send(Ending(code=REFUSED, why=why))
            raise SystemExit(REFUSED) from None
        await self._outbox.put(FetcherReady())
        parts: list[Coroutine[Any, Any, None]] = [self._read(fetcher), self._write(), self._beat()]
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (*tasks, *self._tasks.values()):
                task.cancel()
            self._channel.close()

    async def _read(self, fetcher: MediaFetcher) -> None:
        while True:
            message = await self._channel.recv()
            if isinstance(message, Fetch):
                self._tasks[message.request_id] = asyncio.create_task(self._fetch(fetcher, message))
                await asyncio.sleep(0)  # it has begun: one that is cancelled before would never say that it has ended
            elif isinstance(message, CancelFetch) and (task := self._tasks.get(message.request_id)) is not None:
                task.cancel()

    async def _write(self) -> None:
        """The one task that sends: a fetch that is cancelled must not tear its message."""
        while True:
            await self._channel.send(await self._outbox.get())

    async def _beat(self) -> None:
        while True:
            await self._outbox.put(FetcherPulse())
            await asyncio.sleep(BEAT_SECONDS)

    async def _fetch(self, fetcher: MediaFetcher, job: Fetch) -> None:
        async def take(data: bytes) -> None:
            await self._outbox.put(FetchedPiece(request_id=job.request_id, data=data))

        outcome: FetchOutcome
        try:
            await fetcher.fetch(job.url, job.max_bytes, take)
            outcome, why = "whole", ""
        except ForbiddenUrl as error:
            outcome, why = "forbidden", str(error)
        except FetchFailed as error:
            outcome, why = "failed", str(error)
        except TooLarge:
            outcome, why = "large", ""
        except asyncio.CancelledError:
            outcome, why = "cancelled", ""
        except Exception as error:  # noqa: BLE001 - of a library, by what a stranger sent: this medium alone fails
            # Its message may hold what was fetched.
            log.error("a medium could not be fetched: %s", type(error).__name__)
            outcome, why = "internal", ""
        del self._tasks[job.request_id]
        await self._outbox.put(FetchEnded(request_id=job.request_id, outcome=outcome, why=why))


def run(channel_fd: int) -> None:
    """Raises ChannelClosed when the server has gone."""
    sock = socket.socket(fileno=channel_fd)
    sock.set_inheritable(False)

    async def fetch_until_closed() -> None:
        await FetchLoop(AsyncChannel(sock, ToFetcher)).run()

    asyncio.run(fetch_until_closed())
