"""The pool's face on the event loop: every call in one thread, in the order of the calls."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from server.requests.background import Background
from server.requests.refusal import Refusal, invalid_request, overloaded, unavailable
from shm import NeverFits, OwnerError, Pool, PoolFull, PoolStats
from tokenization.messages import Measured

log = logging.getLogger("pixelferry")

P = ParamSpec("P")
T = TypeVar("T")
TOO_LARGE = "media_too_large"
LOST = "media_unavailable"


class Segments:
    """Reserving fresh pages takes up to a second a GiB, so nothing of the pool runs on the loop.

    One thread keeps the order: a retire() that follows a lease() of a request which was cancelled meanwhile runs after
    it, and finds what it left.
    """

    def __init__(self, pool: Pool, background: Background) -> None:
        self._pool = pool
        self._background = background
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="segments")
        self.gone = False  # the directory was removed, or is not private any more, and cannot be made again now

    @property
    def capacity(self) -> int:
        """Bytes that one request can have at most."""
        return self._pool.capacity

    async def lease(self, request_id: str, nbytes: Sequence[int]) -> tuple[str, ...]:
        """Names for that many bytes each. Raises shm.pool's PoolFull and NeverFits, and OwnerError while it is gone."""
        # Shielded: a cancelled caller must not cancel a call that retire() relies on having run or not begun.
        names = await asyncio.shield(self._submit(self._pool.lease, request_id, nbytes))
        if self.gone:
            await self.look_after()
        return names

    async def look_after(self) -> None:
        """See that the shared memory is there, and whether that is so."""
        try:
            await self._submit(self._pool.keep_place)
        except OwnerError as error:
            if not self.gone:
                log.error("shared memory cannot be used, so that pictures, videos and sounds are refused: %s", error)
            self.gone = True
        else:
            if self.gone:
                log.info("shared memory can be used again")
            self.gone = False

    def give_back(self, request_id: str, names: Sequence[str]) -> None:
        """A reader has its copy of these."""
        self._background.spawn(self._submit(self._pool.give_back, request_id, names))

    def retire(self, request_id: str) -> None:
        """The request ended: its names lead nowhere from now on."""
        self._background.spawn(self._submit(self._pool.retire, request_id))

    async def settle(self, request_id: str) -> None:
        """Nobody has the request's segments open any more."""
        await self._submit(self._pool.settle, request_id)

    async def stats(self) -> PoolStats:
        return await self._submit(self._pool.stats)

    def close(self) -> None:
        self._thread.shutdown()

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        return asyncio.wrap_future(self._thread.submit(call, *args, **kwargs))


# ---- media for which there is no room


def check_media_tokens(measured: Measured, limit: int) -> None:
    """Refuse media with more than `limit` tokens, all together. Raises Refusal."""
    n = sum(measured.n_tokens)
    if n <= limit:
        return
    largest = _largest(measured.n_tokens)
    message = (
        f"the media of this request have {n} tokens, and this server keeps the embeddings of at most {limit}; "
        f"this is the largest, with {measured.n_tokens[largest]} tokens"
    )
    raise invalid_request(message, measured.params[largest], TOO_LARGE)


def without_room(error: PoolFull | NeverFits | OwnerError, measured: Measured) -> Refusal:
    """What the client is told of media for which the pool has no room: now, or ever."""
    if isinstance(error, OwnerError):
        return unavailable("this server has no shared memory for media now", "shm_gone", retry_after=10)
    if isinstance(error, PoolFull):
        message = "shared memory is full of other requests' media"
        return overloaded(message, "memory_full", error.retry_after)
    message = "the media of this request need more shared memory than this server has; this is the largest"
    return invalid_request(message, measured.params[_largest(measured.nbytes)], TOO_LARGE)


def media_lost() -> Refusal:
    """Somebody removed them from outside. The same request can be answered: nothing is wrong with it."""
    return unavailable("the media of this request were lost before the model read them", LOST, retry_after=1)


def _largest(sizes: Sequence[int]) -> int:
    return max(range(len(sizes)), key=lambda i: sizes[i])
