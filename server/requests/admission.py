"""Who may come in: how many requests are unfinished, whose they are, and who gives way for whom."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

from model.engine.scheduling.fair_shares import Holdings
from server.request_context import RequestContext
from server.requests.refusal import Refusal, gave_way, overloaded, unavailable

# first: its client has nothing else here; within: at most a fair share; beyond: more than that
ShareClass = Literal["first", "within", "beyond"]


@dataclass(slots=True, eq=False)
class AdmittedPrompt:
    """Of one prompt, from its parsed body to its end."""

    context: RequestContext  # the same for all prompts of a body
    share: ShareClass
    gave_way: bool = False
    leased: int = 0  # bytes of shared memory


class Admission:
    """Counts prompts from their parsed body to their end, by client. `why_not` says why none is taken now, or None.

    When all places are taken, a body that keeps its client within its share of them gets its own all the same: of
    whoever has most beyond its share the youngest body that waits for its first token gives way. Where nobody waits, an
    eighth more than all places are given out: an answer that has begun is not ended for fairness. The same holds for
    shared memory, and for the bytes of bodies (BodyBudget).
    """

    def __init__(
        self, max_requests: int, why_not: Callable[[], Refusal | None], memory: int = 0,
        gave_way: Callable[[str], None] = lambda of: None,
    ) -> None:  # fmt: skip
        """memory: bytes that the pool of shared memory may lend; gave_way: told of what, whenever a place does."""
        self._why_not = why_not
        self._gave_way = gave_way
        self._places: dict[asyncio.Task[object], AdmittedPrompt] = {}
        self._held: Holdings[str] = Holdings(max_requests)
        self._memory: Holdings[str] = Holdings(memory)
        self._giving_back = 0  # bytes of those who gave way, and have not let go yet
        self._freed = asyncio.Event()  # replaced when it is set
        self._n_wait_for_memory = 0  # places whose clients are within their share of it
        self.draining = False

    @property
    def n_active(self) -> int:
        return len(self._places)

    @property
    def full(self) -> bool:
        return not self._held.room(1)

    def refusal(self, client: str, n: int = 1) -> Refusal | None:
        """Why a request that comes now is not taken, or None. Asked before its body is read, too.

        n: places that its body needs. One that could not have them all makes nobody give way.
        """
        if self.draining:
            return stopping()
        error = self._why_not()
        if error is not None or self._held.room(n):
            return error
        most = int(self._held.capacity)
        if self._held.within(client, n) and (self._held.total < most + most // 8 or self._waits(self._held, client)):
            return None
        return overloaded(f"this server takes {most} requests at once (--max-requests)", "queue_full")

    @contextlib.contextmanager
    def enter(self, context: RequestContext) -> Iterator[AdmittedPrompt]:
        """Count the running task as one request. Raises Refusal when it is not taken, or when it gives way."""
        client = context.client
        if (error := self.refusal(client)) is not None:
            raise error
        task = asyncio.current_task()
        assert task is not None
        within = self._held.within(client, 1)
        place = AdmittedPrompt(context, "beyond" if not within else "within" if self._held[client] else "first")
        if not self._held.room(1):
            self._give_way("places", self._waits(self._held, client))
        self._held.take(client, 1)
        self._places[task] = place
        try:
            if (body := context.body) is not None:
                if body.refusal is not None:  # it gave way before
                    raise body.refusal
                body.end_waiting = partial(self._end_waiting, context)
            yield place
        except asyncio.CancelledError:
            # Two may cancel it: from 3.11 on a task counts them.
            if not place.gave_way or (hasattr(task, "uncancel") and task.uncancel() > 0):
                raise
            raise gave_way() from None
        finally:
            del self._places[task]
            if not place.gave_way:
                self._held.give(client, 1)

    # ---- shared memory

    def lends(self, place: AdmittedPrompt, nbytes: int) -> bool:
        """Whether it may have so much: not while others wait for their share, and it would have more than its own."""
        return not self._n_wait_for_memory or self._memory.within(place.context.client, nbytes)

    async def memory_given_way(self, place: AdmittedPrompt, nbytes: int) -> bool:
        """Somebody who has more than a share of the memory gives way to it, and some is free. False: nobody does."""
        if not self._memory.within(place.context.client, nbytes):
            return False
        if not self._giving_back or not self._memory.room(nbytes - self._giving_back):
            self._give_way("shared_memory", self._waits(self._memory, place.context.client))
        if not self._giving_back:  # nobody does: others of this machine may have filled it
            return False
        self._n_wait_for_memory += 1
        try:
            await self._freed.wait()
        finally:
            self._n_wait_for_memory -= 1
        return True

    def lent(self, place: AdmittedPrompt, nbytes: int) -> None:
        place.leased += nbytes
        self._memory.take(place.context.client, nbytes)

    def given_back(self, place: AdmittedPrompt, nbytes: int) -> None:
        """So much of what was lent; all of it when it ends."""
        place.leased -= nbytes
        self._memory.give(place.context.client, nbytes)
        if place.gave_way:
            self._giving_back -= nbytes
        self._freed.set()
        self._freed = asyncio.Event()

    # ---- the end

    async def drain(self, seconds: float) -> None:
        """Take nobody new, give those inside `seconds` to end, then end them."""
        self.draining = True
        if self._places:
            await asyncio.wait(set(self._places), timeout=seconds)
        await self.end()

    async def end(self, seconds: float | None = None) -> None:
        """End those inside, and give them `seconds` to let go of what they have, or as long as it takes."""
        left = set(self._places)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=seconds)

    def _waits(self, held: Holdings[str], client: str) -> dict[asyncio.Task[object], AdmittedPrompt]:
        """The youngest body without a token of whoever has most beyond a share of it; {} where there is none."""
        for other in held.beyond(held.n_clients(client)):
            mine = {task: place for task, place in self._places.items() if place.context.client == other}
            begun = {id(place.context) for place in mine.values() if place.context.begun or place.gave_way}
            for youngest in reversed(list(mine.values())):
                if id(youngest.context) not in begun and (held is not self._memory or youngest.leased):
                    return {task: place for task, place in mine.items() if place.context is youngest.context}
        return {}

    def _end_waiting(self, context: RequestContext) -> bool:
        """End all prompts of a body for the room that it takes. False, and nothing ended, where an answer has begun."""
        if context.begun:
            return False
        places = {task: place for task, place in self._places.items() if place.context is context}
        self._give_way("bodies", {task: place for task, place in places.items() if not place.gave_way})
        return bool(places)

    def _give_way(self, what: str, places: dict[asyncio.Task[object], AdmittedPrompt]) -> None:
        for task, place in places.items():
            place.gave_way = True
            self._giving_back += place.leased
            self._held.give(place.context.client, 1)
            task.cancel()
            self._gave_way(what)


def stopping() -> Refusal:
    return unavailable("the server is stopping", "stopping", retry_after=5)
