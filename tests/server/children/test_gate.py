"""Places go to those whose turn it is, and none is lost."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from server.children.gate import Gate, NobodyUp
from tests.server.doubles import until

WAIT_SECONDS = 0.02


class Places:
    """Numbered places and the gate to them."""

    def __init__(self, n: int, seconds_down: float = 0.0) -> None:
        self.free = list(range(n))
        self.seconds_down = seconds_down
        self.gate: Gate[str, int] = Gate(self._take, self.free.append, lambda _: self.seconds_down, WAIT_SECONDS)
        self.next = 0  # whose turn it is among those who wait

    def _take(self, waiting: Sequence[str]) -> tuple[str, int] | None:
        return (waiting[self.next], self.free.pop(0)) if self.free else None

    def leave(self, place: int) -> None:
        self.free.append(place)
        self.gate.offer()


Scenario = Callable[[Places], Awaitable[None]]


def play(scenario: Scenario, n: int = 1) -> None:
    async def run() -> None:
        await scenario(Places(n))

    asyncio.run(run())


def test_places_are_given_in_the_order_of_asking() -> None:
    async def scenario(places: Places) -> None:
        order: list[str] = []

        async def visit(name: str) -> None:
            place = await places.gate.enter(name)
            order.append(name)
            places.leave(place)

        first = await places.gate.enter("first")
        visits = [asyncio.create_task(visit(name)) for name in "abc"]
        await until(lambda: places.gate.n_waiting == 3)
        places.leave(first)
        await asyncio.gather(*visits)
        assert order == ["a", "b", "c"] and places.free == [0] and places.gate.n_waiting == 0

    play(scenario)


def test_whoever_gives_the_places_says_whose_turn_it_is() -> None:
    async def scenario(places: Places) -> None:
        waiting = {name: asyncio.create_task(places.gate.enter(name)) for name in "abc"}
        await until(lambda: places.gate.waiting == ["a", "b", "c"])
        for turn, name in ((1, "b"), (1, "c"), (0, "a")):
            places.next = turn
            places.leave(7)
            assert await waiting[name] == 7

    play(scenario, n=0)


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "with a place in hand"])
def test_who_leaves_passes_its_place_on(given: bool) -> None:
    async def scenario(places: Places) -> None:
        first = await places.gate.enter("first")
        leaver = asyncio.create_task(places.gate.enter("leaver"))
        stayer = asyncio.create_task(places.gate.enter("stayer"))
        await until(lambda: places.gate.n_waiting == 2)
        if given:
            places.leave(first)  # the leaver has it, and has not run yet
            leaver.cancel()
        else:
            leaver.cancel()
            places.leave(first)
        assert await stayer == 0
        assert leaver.cancelled() and places.free == [] and places.gate.n_waiting == 0

    play(scenario)


def test_all_who_wait_are_told_that_there_will_be_no_place() -> None:
    async def scenario(places: Places) -> None:
        waiting = [asyncio.create_task(places.gate.enter(name)) for name in ("a", "b", "c", "d")]
        await until(lambda: places.gate.n_waiting == 4)
        waiting[1].cancel()
        places.gate.fail(LookupError("gone"), lambda asking: asking != "d")
        found = await asyncio.gather(*waiting[:3], return_exceptions=True)
        assert [type(error) for error in found] == [LookupError, asyncio.CancelledError, LookupError]
        places.leave(7)
        assert await waiting[3] == 7  # who was not meant is served

    play(scenario, n=0)


def test_who_waits_while_nobody_is_up_gives_up_after_its_own_time() -> None:
    """Nobody has been up for an hour: each waits for its own time all the same, and is then passed over."""

    async def scenario(places: Places) -> None:
        places.seconds_down = 3600.0
        waiting = [asyncio.create_task(places.gate.enter(name)) for name in "ab"]
        await until(lambda: places.gate.n_waiting == 2)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [NobodyUp, NobodyUp] and places.gate.n_waiting == 0
        places.leave(7)
        assert places.free == [7], "nobody who has given up takes a place"

    play(scenario, n=0)


def test_who_waits_behind_others_waits_for_as_long_as_it_takes() -> None:
    async def scenario(places: Places) -> None:
        waiting = asyncio.create_task(places.gate.enter("a"))
        await asyncio.sleep(5 * WAIT_SECONDS)
        assert not waiting.done()
        places.seconds_down = 2 * WAIT_SECONDS  # who gave places has gone
        await until(waiting.done)
        with pytest.raises(NobodyUp):
            waiting.result()

    play(scenario, n=0)
