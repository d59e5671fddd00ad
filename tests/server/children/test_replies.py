"""A request waits for its turn for as long as somebody is there to give it one, and reads what it is told in order."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from server.children.replies import NobodyUp, Replies
from tests.server.doubles import until

WAIT_SECONDS = 0.02


class Place:
    """One that somebody may give."""

    def __init__(self) -> None:
        self.free = False
        self.seconds_down = 0.0
        self.gone = False

    def may_begin(self, request: object) -> bool:
        if self.gone:
            raise LookupError("gone")
        return self.free

    def seconds_down_for(self, request: object) -> float:
        return self.seconds_down

    async def wait(self, request: Replies[str]) -> None:
        await request.wait_for_turn(self, WAIT_SECONDS)


def play(scenario: Callable[[Place, Replies[str]], Awaitable[None]]) -> None:
    async def run() -> None:
        await scenario(Place(), Replies("a"))

    asyncio.run(run())


def test_a_turn_that_is_there_is_not_waited_for() -> None:
    async def scenario(place: Place, request: Replies[str]) -> None:
        place.free, place.seconds_down = True, 3600.0
        await place.wait(request)

    play(scenario)


def test_who_is_woken_looks_again() -> None:
    async def scenario(place: Place, request: Replies[str]) -> None:
        waiting = asyncio.create_task(place.wait(request))
        for free in (False, True):
            await asyncio.sleep(0.001)
            assert not waiting.done()
            place.free = free
            request.wake()
        await waiting

    play(scenario)


def test_who_waits_while_nobody_is_up_gives_up_after_its_own_time() -> None:
    """Nobody has been up for an hour: each waits for its own time all the same."""

    async def scenario(place: Place, request: Replies[str]) -> None:
        place.seconds_down = 3600.0
        begun = asyncio.get_running_loop().time()
        with pytest.raises(NobodyUp):
            await place.wait(request)
        assert asyncio.get_running_loop().time() - begun >= 0.9 * WAIT_SECONDS

    play(scenario)


def test_who_waits_behind_others_waits_for_as_long_as_it_takes() -> None:
    async def scenario(place: Place, request: Replies[str]) -> None:
        waiting = asyncio.create_task(place.wait(request))
        await asyncio.sleep(5 * WAIT_SECONDS)
        assert not waiting.done()
        place.seconds_down = 2 * WAIT_SECONDS  # who gave places has gone
        await until(waiting.done)
        with pytest.raises(NobodyUp):
            waiting.result()

    play(scenario)


def test_what_says_that_no_turn_will_come_is_raised_to_who_waits() -> None:
    async def scenario(place: Place, request: Replies[str]) -> None:
        waiting = asyncio.create_task(place.wait(request))
        await asyncio.sleep(0.001)
        place.gone = True
        request.wake()
        with pytest.raises(LookupError):
            await waiting

    play(scenario)


def test_a_failure_is_raised_behind_what_came_before_it() -> None:
    async def scenario(place: Place, request: Replies[str]) -> None:
        reading = asyncio.create_task(request.next())
        await asyncio.sleep(0)
        request.put("a")
        assert await reading == ["a"]
        request.put("b")
        request.put("c")
        request.end(LookupError("gone"))
        assert await request.next() == ["b", "c"] and request.ended.is_set()
        for _ in range(2):
            with pytest.raises(LookupError):
                await request.next()

    play(scenario)
