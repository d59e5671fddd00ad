"""What a child says about one request: read by the request as it comes, after the wait for its turn at the child."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

R = TypeVar("R")


class NobodyUp(Exception):
    """No child that could have taken the request was up for as long as one may wait for it."""


class GivesTurns(Protocol):
    """Who says whose turn it is at a child."""

    def may_begin(self, request: Any, /) -> bool:
        """Whether it is its turn. Raises what is to be told where there will never be one."""

    def seconds_down_for(self, request: Any, /) -> float:
        """For how long no child has been there that could begin it; 0 while one is."""


@dataclass(eq=False)
class Replies(Generic[R]):
    """Of one request, from its wait for a child to the moment when the child holds nothing of it any more."""

    request_id: str
    ended: asyncio.Event = field(init=False, default_factory=asyncio.Event)  # the child has let go of it
    _unread: list[R] = field(init=False, default_factory=list)
    _failure: Exception | None = field(init=False, default=None)
    _waiter: "asyncio.Future[None] | None" = field(init=False, default=None)

    async def wait_for_turn(self, givers: "GivesTurns", most_seconds: float) -> None:
        """Return when it may begin, which is asked whenever somebody calls `wake`. Raises NobodyUp.

        As long as there is a child that could begin it, a request waits without limit. Otherwise it waits for
        `most_seconds`, counted from when it came at the earliest.
        """
        came = time.monotonic()
        while not givers.may_begin(self):
            without = min(givers.seconds_down_for(self), time.monotonic() - came)
            if without >= most_seconds:
                raise NobodyUp
            self._waiter = asyncio.get_running_loop().create_future()
            await asyncio.wait({self._waiter}, timeout=most_seconds - without)

    async def next(self) -> Sequence[R]:
        """What has come since the last call; nothing where somebody called `wake`, or it has ended.

        Raises what it ended with, once all that came before is read.
        """
        if not self._unread and not self.ended.is_set():
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._unread and self._failure is not None:
            raise self._failure
        found, self._unread = self._unread, []
        return found

    def put(self, reply: R) -> None:
        self._unread.append(reply)
        self.wake()

    def end(self, failure: Exception | None = None) -> None:
        """The child holds nothing of it any more. `failure` is for a reader who waits for more."""
        self._failure = failure
        self.ended.set()
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
