"""A worker that keeps too much is replaced between two jobs, one worker at a time, and no chat is lost by it."""

import asyncio

import pytest

from server.children import workers
from server.http.health import readiness
from tests.server.doubles import Scene, chat_of, kill_in, prepared, start_in
from tests.server.scenario import Play, begun
from tokenization.messages import WorkerGrown, WorkerReady

GROWN = WorkerGrown(nbytes=300 << 20)
WHY = "it keeps 300 MiB of earlier jobs"


def test_it_is_due_once_it_is_wanted_and_the_others_serve(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (slot,), text = scene.workers.slots, scene.workers.text
        scene.start_picture_worker()
        assert slot.replacement_reason() is None
        job = await begun(scene, "a", chat_of("image"))
        slot.on_message(GROWN)
        assert (slot.replacement_reason(), slot.state) == (None, "busy"), "the others are away"
        start_in(text)
        assert (slot.replacement_reason(), slot.state) == (None, "replacing"), "it has a job, and gets no other one"
        kill_in(text)
        slot.on_message(prepared("a"))
        assert job.ended.is_set() and slot.replacement_reason() == WHY, "it is too late to think better of it"
        kill_in(slot)
        start_in(slot, ready=False)
        assert (slot.replacement_reason(), slot.state, slot.being_replaced) == (None, "replacing", True)
        slot.on_message(WorkerReady())
        assert (slot.state, slot.replacement_reason(), slot.being_replaced) == ("free", None, False)

    play(scenario)


def test_where_others_serve_it_gets_no_further_job_at_once(play: Play) -> None:
    """What it keeps may leave no room for one."""

    async def scenario(scene: Scene) -> None:
        scene.start_text_worker()
        scene.start_picture_worker()
        scene.workers.slots[0].on_message(GROWN)
        assert scene.workers.slots[0].state == "replacing"

    play(scenario)


def test_a_worker_ends_its_job_first_and_gets_no_other(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.workers.slots
        scene.start_text_worker()
        scene.start_picture_worker().state = "busy"
        slot = (await begun(scene, "a", chat_of("image"))).worker
        assert slot is not None
        assert slot is first
        for worker in (first, second):
            worker.on_message(GROWN)
        assert [worker.replacement_reason() for worker in (first, second)] == [None, None]
        assert [worker.serves for worker in (first, second)] == [False, True], "one at a time"
        assert (await begun(scene, "b", chat_of("image"))).worker is second
        waiting = asyncio.create_task(begun(scene, "c", chat_of("image")))
        first.on_message(prepared("a"))
        await asyncio.sleep(0)
        assert first.replacement_reason() == WHY and first.state != "free" and scene.workers.n_waiting == 1
        scene.kill_worker(0)
        assert (second.replacement_reason(), second.serves) == (None, True), "the first is not back yet"
        scene.start_worker(0)
        assert (await waiting).worker is first and first.replacement_reason() is None
        assert (second.replacement_reason(), second.serves) == (None, False)
        second.on_message(prepared("b"))
        assert second.replacement_reason() == WHY

    play(scenario, workers=2)


def test_a_worker_that_is_alone_is_replaced_all_the_same(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server stays ready meanwhile, and is so no longer where that takes long."""

    async def scenario(scene: Scene) -> None:
        (slot,) = scene.workers.slots
        scene.start_text_worker()
        scene.start_picture_worker().state = "busy"
        slot.on_message(GROWN)
        assert slot.replacement_reason() == WHY
        waiting = asyncio.create_task(begun(scene, "a", chat_of("image")))
        await asyncio.sleep(0)
        scene.kill_worker()
        state, error = readiness(scene.service)
        assert (error, state["status"], state["workers_up"]) == (None, "busy", 0)
        monkeypatch.setattr(workers, "REPLACE_SECONDS", 0.0)
        state, error = readiness(scene.service)
        assert error is not None and state["status"] == "workers_down", "it takes too long"
        scene.start_worker()
        assert (await waiting).worker is slot
        monkeypatch.undo()
        scene.kill_worker()
        assert readiness(scene.service)[0]["status"] == "workers_down", "that one died by itself"

    play(scenario)


def test_the_worker_of_texts_is_one_of_them_and_another_takes_its_texts(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (slot,), text = scene.workers.slots, scene.start_text_worker()
        scene.start_picture_worker()
        for worker in (text, slot):
            worker.on_message(GROWN)
        assert (text.replacement_reason(), slot.replacement_reason()) == (WHY, None), "one at a time"
        assert (await begun(scene, "a", chat_of("text"))).worker is slot
        kill_in(text)
        assert (slot.replacement_reason(), slot.serves) == (None, True), "that of texts is not back yet"
        start_in(text)
        assert (slot.replacement_reason(), slot.serves) == (None, False), "it has a job"
        assert (await begun(scene, "b", chat_of("text"))).worker is text

    play(scenario)
