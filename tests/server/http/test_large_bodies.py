"""One thread reads large bodies, and its time is shared among clients slice by slice."""

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable

import pytest
from starlette.requests import ClientDisconnect

from server.http import large_bodies
from server.http.large_bodies import LargeBodies, Steps
from tests.tables import each_of


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """By which each turn is one slice, and each slice takes as long."""
    monkeypatch.setattr(large_bodies, "TURN_SECONDS", 1.0)
    return map(float, itertools.count()).__next__


def stays() -> bool:
    return False


class Scene:
    """Bodies of some slices each; whose slices were read, in order."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.bodies = LargeBodies(clock)
        self.order: list[str] = []
        self.arrivals: dict[int, Callable[[], object]] = {}  # by the number of slices that were read before
        self._loop = asyncio.get_running_loop()

    def read(self, name: str, n: int, *, nbytes: int = 1, left: Callable[[], bool] = stays) -> asyncio.Task[str]:
        """A body of `n` slices; its client is the first letter of its name."""
        return asyncio.create_task(self.bodies.read(name[0], nbytes, self._steps(name, n), left))

    def _steps(self, name: str, n: int) -> Steps[str]:
        for _ in range(n):
            self.order.append(name)
            arrival = self.arrivals.pop(len(self.order), None)
            if arrival is not None:  # it has joined the line when this slice ends
                asyncio.run_coroutine_threadsafe(self._arrive(arrival), self._loop).result(60)
            yield
        return name

    async def _arrive(self, arrival: Callable[[], object]) -> None:
        arrival()
        await asyncio.sleep(0)


@each_of("others", [1, 8])
def test_a_newcomer_waits_for_one_slice_of_each_of_its_own(clock: Callable[[], float], others: int) -> None:
    async def scenario() -> None:
        scene = Scene(clock)
        late: list[Awaitable[str]] = []
        scene.arrivals[20] = lambda: late.append(scene.read("b", 5))
        first = [scene.read(f"a{n}", 50) for n in range(others)]
        assert list(await asyncio.gather(*first)) == [f"a{n}" for n in range(others)]
        assert await late[0] == "b"
        last = max(i for i, name in enumerate(scene.order) if name == "b")
        assert scene.order[:20] == ["a0"] * 20 and last - 20 <= 2 * 5
        own = [name for name in scene.order if name != "b"]
        assert own == sorted(own)  # one client's bodies are read in the order in which they came

    asyncio.run(scenario())


def test_three_clients_are_given_as_much(clock: Callable[[], float]) -> None:
    async def scenario() -> None:
        scene = Scene(clock)
        await asyncio.gather(*(scene.read(name, 30) for name in ("a1", "a2", "b", "c")))
        begin = scene.order[:87]
        assert {begin.count(name) for name in ("a1", "b", "c")} <= {28, 29, 30}

    asyncio.run(scenario())


def test_a_client_that_leaves_is_read_no_further(clock: Callable[[], float]) -> None:
    async def scenario() -> None:
        scene = Scene(clock)
        gone: list[bool] = []
        scene.arrivals[7] = lambda: gone.append(True)
        leaves, follows = scene.read("a1", 50, left=lambda: bool(gone)), scene.read("a2", 3)
        with pytest.raises(ClientDisconnect):
            await leaves
        assert await follows == "a2" and scene.order == ["a1"] * 7 + ["a2"] * 3

    asyncio.run(scenario())


def test_a_fault_and_an_end_in_the_middle_pass_the_turn_on(clock: Callable[[], float]) -> None:
    def broken() -> Steps[str]:
        yield
        raise ValueError("broken")

    async def scenario() -> None:
        scene = Scene(clock)
        wrong = asyncio.create_task(scene.bodies.read("a", 1, broken(), stays))
        ended, waiting, last = scene.read("b", 1000), scene.read("a", 1), scene.read("c", 4)
        scene.arrivals[6] = ended.cancel
        with pytest.raises(ValueError, match="broken"):
            await wrong
        with pytest.raises(asyncio.CancelledError):
            await ended
        assert list(await asyncio.gather(waiting, last)) == ["a", "c"]
        assert await scene.read("b", 2) == "b"

    asyncio.run(scenario())


def test_a_turn_that_is_cancelled_is_charged_and_keeps_the_thread() -> None:
    """Its slice goes on in the thread: the client that cancels is not given more for it than others."""
    goes, ends = threading.Event(), threading.Event()

    def slow() -> Steps[str]:
        goes.set()
        assert ends.wait(60)
        yield
        return "slow"

    async def scenario() -> None:
        took = iter([0.0, 5.0, *[6.0 + i for i in range(100)]])
        bodies = LargeBodies(lambda: next(took))
        cancelled = asyncio.create_task(bodies.read("a", 1, slow(), stays))
        await asyncio.to_thread(goes.wait, 60)
        cancelled.cancel()
        await asyncio.sleep(0)
        order: list[str] = []

        def steps(name: str) -> Steps[str]:
            order.append(name)
            yield
            return name

        waiting = [asyncio.create_task(bodies.read(name, 1, steps(name), stays)) for name in ("a", "b")]
        await asyncio.sleep(0)
        assert not order and not cancelled.done()
        ends.set()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        await asyncio.gather(*waiting)
        assert order == ["b", "a"]

    asyncio.run(scenario())


def test_so_many_bytes_are_begun(clock: Callable[[], float], monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read of a body lies beside it in memory; a small one fits beside others."""
    monkeypatch.setattr(large_bodies, "MOST_BEGUN", 10)

    async def scenario() -> None:
        scene = Scene(clock)
        sizes = {"a": 6, "b": 5, "c": 4}
        await asyncio.gather(*(scene.read(name, 10, nbytes=nbytes) for name, nbytes in sizes.items()))
        assert scene.order.index("b") > max(i for i, name in enumerate(scene.order) if name == "a")
        assert scene.order.index("c") < 3
        assert await scene.read("d", 1, nbytes=11) == "d"

    asyncio.run(scenario())
