"""Who is taken, who is refused and why, and how a drain ends those inside."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from server.request_context import RequestContext
from server.requests.admission import Admission
from server.requests.refusal import Refusal, unavailable
from tests.server.doubles import Scene, prepared, until
from tests.server.scenario import Play, fails, request, start

FOREVER = 600.0  # seconds; no test waits so long


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 20)

    asyncio.run(bounded())


def nothing_is_missing() -> None:
    """The answer of a server that has all its processes."""


async def inside(admission: Admission, end: asyncio.Event, failure: Exception | None = None) -> None:
    """One request, until `end`."""
    with admission.enter(RequestContext()):
        await end.wait()
        if failure is not None:
            raise failure


def test_a_request_counts_until_it_ends_however_it_ends() -> None:
    async def scenario() -> None:
        admission, end = Admission(3, nothing_is_missing), asyncio.Event()
        good = asyncio.create_task(inside(admission, end))
        bad = asyncio.create_task(inside(admission, end, ZeroDivisionError()))
        left = asyncio.create_task(inside(admission, end))
        await until(lambda: admission.n_active == 3)
        left.cancel()
        await until(lambda: admission.n_active == 2)
        end.set()
        assert isinstance((await asyncio.gather(good, bad, return_exceptions=True))[1], ZeroDivisionError)
        assert admission.n_active == 0

    run(scenario())


def test_one_more_than_fit_is_refused_and_told_to_come_back() -> None:
    async def scenario() -> None:
        admission, end = Admission(1, nothing_is_missing), asyncio.Event()
        assert admission.refusal("") is None
        first = asyncio.create_task(inside(admission, end))
        await until(lambda: admission.n_active == 1)
        with pytest.raises(Refusal, match="1 requests at once") as caught:
            await inside(admission, end)
        assert (caught.value.kind, caught.value.code) == ("overloaded", "queue_full")
        assert caught.value.retry_after is not None and caught.value.retry_after >= 1
        assert admission.n_active == 1, "who is refused is not counted"
        end.set()
        await first
        assert admission.refusal("") is None
        await inside(admission, end)

    run(scenario())


def test_a_process_that_is_missing_is_named_before_the_full_queue() -> None:
    async def scenario() -> None:
        missing: list[Refusal] = []
        admission, end = Admission(1, lambda: missing[-1] if missing else None), asyncio.Event()
        first = asyncio.create_task(inside(admission, end))
        await until(lambda: admission.n_active == 1)
        missing.append(unavailable("the model is still loading", "loading", retry_after=2))
        assert admission.refusal("") is missing[0]
        with pytest.raises(Refusal) as caught:
            await inside(admission, end)
        assert caught.value is missing[0]
        end.set()
        await first

    run(scenario())


def test_a_server_that_stops_says_so_before_all_else() -> None:
    async def scenario() -> None:
        admission = Admission(0, lambda: unavailable("loading", "loading"))
        await admission.drain(FOREVER)
        found = admission.refusal("")
        assert found is not None and (found.kind, found.code, found.retry_after) == ("unavailable", "stopping", 5)

    run(scenario())


def test_a_drain_lets_those_inside_end() -> None:
    async def scenario() -> None:
        admission, end = Admission(2, nothing_is_missing), asyncio.Event()
        first = asyncio.create_task(inside(admission, end))
        await until(lambda: admission.n_active == 1)
        drain = asyncio.create_task(admission.drain(FOREVER))
        await until(lambda: admission.refusal("") is not None)
        with pytest.raises(Refusal, match="stopping"):
            await inside(admission, end)
        assert not first.done() and not drain.done()
        end.set()
        await drain
        assert first.done() and not first.cancelled()

    run(scenario())


def test_a_drain_that_runs_out_of_time_ends_the_rest_and_waits_for_them() -> None:
    async def scenario() -> None:
        admission = Admission(2, nothing_is_missing)
        released: list[str] = []

        async def slow() -> None:
            with admission.enter(RequestContext()):
                try:
                    await asyncio.Event().wait()
                finally:
                    await asyncio.sleep(0.01)
                    released.append("what it held")

        task = asyncio.create_task(slow())
        await until(lambda: admission.n_active == 1)
        await admission.drain(0.01)
        assert task.cancelled() and released and admission.n_active == 0

    run(scenario())


# ---- through the service


def test_the_queue_is_bounded_and_a_drain_takes_nobody(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        tasks = [start(scene, request(name=f"chat-{i}"))[0] for i in range(4)]
        await until(lambda: scene.service.admission.n_active == 4)
        refused, _ = start(scene, request(name="chat-9"))
        await fails(refused, "overloaded", "queue_full")
        drain = asyncio.create_task(scene.service.admission.drain(0.05))
        await asyncio.sleep(0)
        refused, _ = start(scene, request(name="chat-9"))
        await fails(refused, "unavailable", "stopping")
        await drain
        assert all(task.cancelled() for task in tasks)
        scene.workers.slots[0].on_message(prepared("chat-0"))

    play(scenario)
