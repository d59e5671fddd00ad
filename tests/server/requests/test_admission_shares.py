"""Clients that want more than there is: who comes in, and who gives way, for places and for shared memory."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from server.request_context import RequestContext
from server.requests.admission import Admission, AdmittedPrompt, ShareClass
from server.requests.refusal import Refusal, gave_way
from tests.server.doubles import until
from tests.server.http.exchanges import bodies, body_of


class Crowd:
    """Requests that stay inside until they are ended."""

    def __init__(self, most: int, memory: int = 100) -> None:
        self.gave_way: list[str] = []
        self.admission = Admission(most, lambda: None, memory, self.gave_way.append)
        self.places: dict[str, AdmittedPrompt] = {}
        self._ends = asyncio.Event()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(
        self, name: str, client: str, context: RequestContext | None = None, leases: int = 0
    ) -> AdmittedPrompt:
        """Its name; prompts of one body have one context."""
        context = context or RequestContext(client=client)

        async def stay() -> None:
            with self.admission.enter(context) as place:
                self.places[name] = place
                try:
                    if leases:
                        self.admission.lent(place, leases)
                    await self._ends.wait()
                finally:
                    if leases:
                        asyncio.get_running_loop().call_later(0.01, self.admission.given_back, place, leases)

        self.tasks[name] = asyncio.create_task(stay())
        await until(lambda: name in self.places or self.tasks[name].done())
        if self.tasks[name].done():
            await self.tasks[name]
        return self.places[name]

    async def end(self) -> None:
        self._ends.set()
        await asyncio.gather(*self.tasks.values(), return_exceptions=True)
        await asyncio.sleep(0.02)
        assert self.admission.n_active == 0 and not self.admission.full

    async def how(self, name: str) -> str | None:
        """The code of the refusal that it ended with."""
        with pytest.raises(Refusal) as caught:
            await self.tasks[name]
        return caught.value.code


def play(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_newcomer_takes_the_place_of_the_youngest_that_waits_of_whoever_has_most() -> None:
    async def scenario() -> None:
        crowd = Crowd(8)
        for i in range(5):
            await crowd.come(f"most{i}", "most")
        for i in range(3):
            await crowd.come(f"some{i}", "some")
        assert crowd.admission.full
        crowd.places["most4"].context.begun = True
        await crowd.come("new", "newcomer")
        assert await crowd.how("most3") == "gave_way" and crowd.gave_way == ["places"]
        assert not any(crowd.tasks[name].done() for name in ("most0", "most4", "some0", "new"))
        await crowd.end()

    play(scenario)


def test_all_prompts_of_a_body_give_way_together_and_none_of_one_that_has_begun() -> None:
    async def scenario() -> None:
        crowd = Crowd(6)
        bodies = [RequestContext(client="greedy") for _ in range(2)]
        for i in range(6):
            await crowd.come(f"greedy{i}", "greedy", bodies[i // 3])
        crowd.places["greedy4"].context.begun = True
        await crowd.come("new", "newcomer")
        assert [await crowd.how(f"greedy{i}") for i in range(3)] == ["gave_way"] * 3
        assert not crowd.tasks["greedy3"].done() and crowd.admission.n_active == 4
        await crowd.end()

    play(scenario)


def test_where_all_answers_have_begun_an_eighth_more_comes_in() -> None:
    async def scenario() -> None:
        crowd = Crowd(8)
        for i in range(8):
            (await crowd.come(f"greedy{i}", "greedy")).context.begun = True
        await crowd.come("new", "newcomer")
        with pytest.raises(Refusal) as caught:
            await crowd.come("late", "another")
        assert caught.value.code == "queue_full" and not crowd.gave_way
        await crowd.end()

    play(scenario)


def test_who_has_its_share_is_refused() -> None:
    async def scenario() -> None:
        crowd = Crowd(4)
        for i in range(3):
            await crowd.come(f"a{i}", "a")
        await crowd.come("b0", "b")
        await crowd.come("b1", "b")
        assert crowd.gave_way == ["places"]
        for client in ("a", "b"):
            refusal = crowd.admission.refusal(client)
            assert refusal is not None and refusal.code == "queue_full"
        assert crowd.admission.refusal("c") is None
        await crowd.end()

    play(scenario)


def test_a_newcomer_is_refused_from_as_many_clients_on_as_there_are_places() -> None:
    async def scenario() -> None:
        crowd = Crowd(8)
        for client in "aabcdefg":
            await crowd.come(f"{client}{len(crowd.places)}", client)
        await crowd.come("h", "h")
        assert crowd.gave_way == ["places"], "there were seven, and one of them had two"
        refusal = crowd.admission.refusal("i")
        assert refusal is not None and refusal.code == "queue_full"
        await crowd.end()

    play(scenario)


def test_a_body_that_could_not_have_all_its_places_makes_nobody_give_way() -> None:
    async def scenario() -> None:
        crowd = Crowd(8)
        for i in range(7):
            await crowd.come(f"a{i}", "a")
        assert crowd.admission.refusal("b", 4) is None
        refusal = crowd.admission.refusal("b", 5)
        assert refusal is not None and refusal.code == "queue_full", "though there is room for one of them"
        assert not crowd.gave_way
        await crowd.end()

    play(scenario)


def test_a_client_that_is_alone_may_have_every_place_and_no_more() -> None:
    async def scenario() -> None:
        crowd = Crowd(3)
        for i in range(3):
            await crowd.come(f"a{i}", "")
        refusal = crowd.admission.refusal("")
        assert refusal is not None and refusal.code == "queue_full"
        await crowd.end()

    play(scenario)


def test_the_class_of_a_share() -> None:
    async def scenario() -> None:
        crowd = Crowd(6)
        await crowd.come("b", "b")
        found: list[ShareClass] = [(await crowd.come(f"a{i}", "a")).share for i in range(4)]
        assert found == ["first", "within", "within", "beyond"]
        await crowd.end()

    play(scenario)


def test_one_who_left_is_no_refusal_though_it_gave_way() -> None:
    async def scenario() -> None:
        crowd = Crowd(1)
        await crowd.come("greedy", "greedy")
        crowd.tasks["greedy"].cancel()
        with pytest.raises(asyncio.CancelledError):
            await crowd.tasks["greedy"]
        await crowd.end()

    play(scenario)


def test_memory_is_given_way_and_nobody_else_takes_it_meanwhile() -> None:
    async def scenario() -> None:
        crowd = Crowd(20, memory=100)
        for i in range(4):
            await crowd.come(f"greedy{i}", "greedy", leases=25)
        new = await crowd.come("new", "newcomer")
        asked = asyncio.create_task(crowd.admission.memory_given_way(new, 30))
        await asyncio.sleep(0)
        greedy = await crowd.come("greedy4", "greedy")
        assert not crowd.admission.lends(greedy, 10), "it has more than a share, and another one waits"
        assert await asked and await crowd.how("greedy3") == "gave_way"
        assert await crowd.admission.memory_given_way(new, 30), "that was too little: the next one"
        assert await crowd.how("greedy2") == "gave_way" and crowd.gave_way == ["shared_memory"] * 2
        assert crowd.admission.lends(greedy, 10)
        await crowd.end()

    play(scenario)


def test_nobody_is_waited_for_where_others_of_the_machine_have_filled_the_memory() -> None:
    """By our books there is room, or would be once a few bytes are back."""

    async def scenario() -> None:
        crowd = Crowd(20, memory=100)
        new = await crowd.come("new", "newcomer")
        assert not await crowd.admission.memory_given_way(new, 10)
        await crowd.come("other", "other", leases=20)
        assert not await crowd.admission.memory_given_way(new, 10) and not crowd.gave_way
        await crowd.end()

    play(scenario)


def test_nobody_gives_memory_to_one_who_wants_more_than_its_share() -> None:
    async def scenario() -> None:
        crowd = Crowd(20, memory=100)
        await crowd.come("greedy", "greedy", leases=90)
        new = await crowd.come("new", "newcomer")
        assert not await crowd.admission.memory_given_way(new, 60) and not crowd.gave_way
        crowd.places["greedy"].context.begun = True
        assert not await crowd.admission.memory_given_way(new, 40), "its answer has begun"
        await crowd.end()

    play(scenario)


def test_a_body_is_ended_for_its_bytes_with_all_its_prompts_and_not_once_it_has_begun() -> None:
    async def scenario() -> None:
        crowd, budget = Crowd(8), bodies(inflight=1000)
        held = {name: body_of(budget, "greedy") for name in ("old", "young")}
        for name, body in held.items():
            body.whole = True
            assert body.hold(400)
            context = RequestContext(client="greedy", body=body)
            await crowd.come(f"{name}0", "greedy", context)
            await crowd.come(f"{name}1", "greedy", context)
        crowd.places["young1"].context.begun = True
        assert body_of(budget, "newcomer").hold(300)
        assert [await crowd.how(f"old{i}") for i in range(2)] == ["gave_way"] * 2
        assert crowd.gave_way == ["bodies"] * 2 and budget.held == 700
        assert not body_of(budget, "newcomer").hold(301) and not crowd.tasks["young0"].done()
        await crowd.end()

    play(scenario)


def test_one_that_gave_way_before_its_admission_is_not_admitted() -> None:
    async def scenario() -> None:
        crowd, body = Crowd(8), body_of(bodies(inflight=1000), "greedy")
        body.refuse(gave_way())
        with pytest.raises(Refusal):
            await crowd.come("late", "greedy", RequestContext(client="greedy", body=body))
        await crowd.end()

    play(scenario)


def test_a_body_does_not_give_way_once_one_of_its_prompts_was_answered() -> None:
    """Its token came, and it ended: what is left of the body is still no more than the rest of an answer."""

    async def scenario() -> None:
        crowd, budget = Crowd(4), bodies(inflight=1000)
        body = body_of(budget, "greedy")
        body.whole = True
        assert body.hold(900)
        context = RequestContext(client="greedy", body=body)
        for i in range(4):
            await crowd.come(f"greedy{i}", "greedy", context)
        context.begun = True
        crowd.tasks["greedy0"].cancel()
        await until(lambda: crowd.admission.n_active == 3)
        await crowd.come("new0", "newcomer")
        with pytest.raises(Refusal):
            await crowd.come("new1", "newcomer")
        assert not body_of(budget, "newcomer").hold(200)
        assert not any(crowd.tasks[f"greedy{i}"].done() for i in range(1, 4)) and not crowd.gave_way
        await crowd.end()

    play(scenario)


def test_a_body_that_gives_way_already_is_not_passed_over() -> None:
    """For its place, in the same step: its bytes go with it, and no other body of its client ends."""

    async def scenario() -> None:
        crowd, budget = Crowd(2), bodies(inflight=1000)
        held = {name: body_of(budget, "greedy") for name in ("old", "young")}
        for name, body in held.items():
            body.whole = True
            assert body.hold(450)
            await crowd.come(name, "greedy", RequestContext(client="greedy", body=body))
        with crowd.admission.enter(RequestContext(client="newcomer")):
            assert body_of(budget, "newcomer").hold(300)
            assert await crowd.how("young") == "gave_way" and not crowd.tasks["old"].done()
            assert crowd.gave_way == ["places"] and budget.held == 750
        await crowd.end()

    play(scenario)
