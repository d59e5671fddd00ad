"""Places go to those who wait in the order in which they came, and none is lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from server.children.gate import Gate, NobodyUp
from tests.server.doubles import until

WAIT_SECONDS = 0.02


class Places:
    """Numbered places and the gate to them."""

    def __init__(self, n: int, seconds_down: float = 0.0) -> None:
        self.free = list(range(n))
        self.seconds_down = seconds_down
        self.gate: Gate[int] = Gate(self._take, self.free.append, lambda: self.seconds_down, WAIT_SECONDS)

    def _take(self) -> int | None:
        return self.free.pop(0) if self.free else None

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
            place = await places.gate.enter()
            order.append(name)
            places.leave(place)

        first = await places.gate.enter()
        visits = [asyncio.create_task(visit(name)) for name in "abc"]
        await until(lambda: places.gate.n_waiting == 3)
        places.leave(first)
        await asyncio.gather(*visits)
        assert order == ["a", "b", "c"] and places.free == [0] and places.gate.n_waiting == 0

    play(scenario)


@pytest.mark.parametrize("given", [False, True], ids=["while it waits", "with a place in hand"])
def test_who_leaves_passes_its_place_on(given: bool) -> None:
    async def scenario(places: Places) -> None:
        first = await places.gate.enter()
        leaver = asyncio.create_task(places.gate.enter())
        stayer = asyncio.create_task(places.gate.enter())
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
        waiting = [asyncio.create_task(places.gate.enter()) for _ in range(3)]
        await until(lambda: places.gate.n_waiting == 3)
        waiting[1].cancel()
        places.gate.fail(LookupError("gone"))
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [LookupError, asyncio.CancelledError, LookupError]
        places.leave(7)
        assert await places.gate.enter() == 7  # and later ones are served again

    play(scenario, n=0)


def test_who_waits_while_nobody_is_up_gives_up_after_its_own_time() -> None:
    """Nobody has been up for an hour: each waits for its own time all the same, and is then passed over."""

    async def scenario(places: Places) -> None:
        places.seconds_down = 3600.0
        waiting = [asyncio.create_task(places.gate.enter()) for _ in range(2)]
        await until(lambda: places.gate.n_waiting == 2)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [NobodyUp, NobodyUp] and places.gate.n_waiting == 0
        places.leave(7)
        assert places.free == [7], "nobody who has given up takes a place"

    play(scenario, n=0)


def test_who_waits_behind_others_waits_for_as_long_as_it_takes() -> None:
    async def scenario(places: Places) -> None:
        waiting = asyncio.create_task(places.gate.enter())
        await asyncio.sleep(5 * WAIT_SECONDS)
        assert not waiting.done()
        places.seconds_down = 2 * WAIT_SECONDS  # who gave places has gone
        await until(waiting.done)
        with pytest.raises(NobodyUp):
            waiting.result()

    play(scenario, n=0)
