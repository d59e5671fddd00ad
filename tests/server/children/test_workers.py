"""Jobs get a free worker in their turn; a worker's death ends its job and nobody else's."""

import asyncio
from typing import Any

import pytest

from server.children.liveness import DRAW_SECONDS
from server.children.workers import WorkerDied, WorkerJob
from tests.server.doubles import ChannelDouble, Scene, chat_of, prepared, until
from tests.server.scenario import Play, begun
from tests.server.tables import each_of
from tokenization.chat.boxes import Box
from tokenization.messages import (
    Cancel,
    Draw,
    Drawn,
    Leases,
    Measured,
    Prepare,
    PrepareFailed,
    WorkerPulse,
)


def ask(scene: Scene, *names: str) -> "list[asyncio.Task[WorkerJob]]":
    return [asyncio.create_task(begun(scene, name, chat_of("image"))) for name in names]


def measured(name: str) -> Measured:
    return Measured(request_id=name, nbytes=(9,), params=("inputs[0]",), n_tokens=(4,))


def failed(name: str, kind: Any = "cancelled") -> PrepareFailed:
    return PrepareFailed(request_id=name, kind=kind, message="")


def told(scene: Scene, index: int = 0) -> list[str]:
    """Whose chats a worker was handed."""
    return [said.request_id for said in scene.to_worker(index) if isinstance(said, Prepare | Draw)]


# ---- a free worker


def test_each_worker_has_one_job_and_the_next_goes_to_who_came_first(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        ask(scene, "a", "b", "c", "d")
        await until(lambda: (told(scene, 0), told(scene, 1)) == (["a"], ["b"]))
        assert scene.workers.n_waiting == 2 and scene.workers.n_up == 2
        scene.workers.slots[1].on_message(prepared("b"))
        await until(lambda: told(scene, 1) == ["b", "c"])
        scene.workers.slots[1].on_message(prepared("c"))
        await until(lambda: told(scene, 1) == ["b", "c", "d"])
        assert told(scene, 0) == ["a"] and scene.workers.n_waiting == 0
        for slot, name in zip(scene.workers.slots, "ad", strict=True):
            slot.on_message(prepared(name))
            assert slot.state == "free"

    play(scenario, workers=2)


@each_of("given", [False, True])
def test_a_waiter_that_left_gives_its_worker_to_the_next(play: Play, given: bool) -> None:
    """Also when it leaves after the worker was given to it and before it could take it."""

    async def scenario(scene: Scene) -> None:
        _, left, following = ask(scene, "a", "b", "c")
        await until(lambda: scene.workers.n_waiting == 2)
        if given:
            scene.workers.slots[0].on_message(prepared("a"))
            assert scene.workers.n_waiting == 1
        left.cancel()
        await asyncio.wait({left})
        if not given:
            scene.workers.slots[0].on_message(prepared("a"))
        await following
        await until(lambda: told(scene) == ["a", "c"])
        assert left.cancelled()
        scene.workers.slots[0].on_message(prepared("c"))
        assert scene.workers.slots[0].state == "free"

    play(scenario)


def test_a_drawing_is_a_job_like_any_other(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (chat,) = ask(scene, "a")
        await chat
        box = Box(ref="", kind="box", points=((0, 0), (1, 1)), picture=0)
        drawing = asyncio.create_task(
            scene.workers.begin(Draw(request_id="b", media=chat_of("image").media[0], boxes=(box,)), "")
        )
        await until(lambda: scene.workers.n_waiting == 1)
        scene.workers.slots[0].on_message(prepared("a"))
        job, slot = await drawing, scene.workers.slots[0]
        await until(lambda: told(scene) == ["a", "b"])
        slot.on_message(WorkerPulse(request_id="b", busy_seconds=60.0 + DRAW_SECONDS))
        assert slot.liveness.overdue(0.0) is None
        slot.on_message(Drawn(request_id="b", picture="data:x", notes=()))
        (drawn,) = await job.next()
        assert isinstance(drawn, Drawn) and job.ended.is_set() and slot.state == "free"

    play(scenario)


# ---- death


def test_a_death_ends_the_job_and_those_who_wait_get_the_next_worker(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, waiting = ask(scene, "a", "b")
        job, slot = await first, scene.workers.slots[0]
        reading = asyncio.create_task(job.next())
        await until(lambda: scene.workers.n_waiting == 1)
        scene.kill_worker()
        with pytest.raises(WorkerDied):
            await reading
        assert job.ended.is_set() and slot.job is None and not slot.up
        assert not waiting.done() and scene.workers.n_waiting == 1
        scene.start_worker()
        job = await waiting
        await until(lambda: told(scene) == ["b"])
        slot.on_message(prepared("b"))
        assert len(await job.next()) == 1 and slot.state == "free"

    play(scenario)


def test_a_worker_that_died_before_its_job_came_is_waited_for_again(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        _, waiting = ask(scene, "a", "b")
        await until(lambda: scene.workers.n_waiting == 1)
        scene.workers.slots[0].on_message(prepared("a"))  # "b" is given the worker, and does not know it yet
        scene.kill_worker()
        await until(lambda: scene.workers.n_waiting == 1)
        assert not waiting.done()
        scene.start_worker()
        assert (slot := (await waiting).worker) is not None
        await until(lambda: told(scene) == ["b"])
        slot.on_message(prepared("b"))

    play(scenario)


def test_those_who_wait_are_told_when_no_worker_can_be_started(play: Play) -> None:
    """As long as one of them may still come, they wait."""

    async def scenario(scene: Scene) -> None:
        for index in range(2):
            scene.kill_worker(index)
        waiting = ask(scene, "a", "b")
        await until(lambda: scene.workers.n_waiting == 2)
        for index in range(2):
            await asyncio.sleep(0.01)
            assert not any(task.done() for task in waiting)
            for _ in range(3):
                scene.start_worker(index, ready=False)
                scene.kill_worker(index)
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [WorkerDied, WorkerDied] and scene.workers.n_waiting == 0

    play(scenario, workers=2)


# ---- one job


@each_of("moment", ["handed over", "measured", "leased"])
def test_a_job_that_nobody_wants_is_cancelled_at_once_wherever_it_is(play: Play, moment: str) -> None:
    """Once. The worker stays taken until it has let go."""

    async def scenario(scene: Scene) -> None:
        job = await begun(scene, "a", chat_of("image"))
        slot = scene.workers.slots[0]
        if moment != "handed over":
            slot.on_message(measured("a"))
        if moment == "leased":
            slot.tell(Leases(request_id="a", names=("x",)))
        scene.workers.cancel(job)
        await scene.idle()
        assert [said for said in scene.to_worker() if isinstance(said, Cancel)] == [Cancel(request_id="a")]
        assert isinstance(scene.to_worker()[-1], Cancel), "after whatever else it was told"
        assert not job.ended.is_set() and slot.job is job
        slot.on_message(failed("a"))
        assert job.ended.is_set() and slot.state == "free"

    play(scenario)


def test_a_cancel_follows_a_large_chat_that_is_still_on_its_way(play: Play) -> None:
    """A worker would forget one that came first."""

    async def scenario(scene: Scene) -> None:
        child: Any = scene.workers.slots[0].child
        child.channel = slow = SlowToSend()
        job = await begun(scene, "a", chat_of("image"))
        slot = scene.workers.slots[0]
        scene.workers.cancel(job)
        await asyncio.sleep(0.01)
        assert slow.said == []
        slow.go_on.set()
        await scene.idle()
        assert [type(said) for said in slow.said] == [Prepare, Cancel]
        slot.on_message(failed("a"))

    play(scenario)


class SlowToSend(ChannelDouble):
    """A chat takes its time, a word about it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = asyncio.Event()

    async def send(self, message: Any, *, large: bool = False) -> None:
        if isinstance(message, Prepare):
            await self.go_on.wait()
        await super().send(message)


def test_a_job_that_ended_is_not_cancelled(play: Play) -> None:
    """The worker may have the next one by then."""

    async def scenario(scene: Scene) -> None:
        job = await begun(scene, "a", chat_of("image"))
        slot = scene.workers.slots[0]
        slot.on_message(prepared("a"))
        scene.workers.cancel(job)
        await scene.idle()
        assert not any(isinstance(said, Cancel) for said in scene.to_worker())

    play(scenario)
