"""A worker that keeps too much is replaced between two jobs, one worker at a time, and no chat is lost by it."""

import asyncio

import pytest

from server.children import worker_slot
from server.children.renewal import Renewal
from server.http.health import readiness
from tests.server.doubles import Scene, chat_of, kill_in, prepared, start_in
from tests.server.scenario import Play
from tokenization.messages import WorkerGrown

GROWN = WorkerGrown(nbytes=300 << 20)
WHY = "it keeps 300 MiB of earlier jobs"


def test_it_is_due_once_it_is_wanted_and_the_others_serve() -> None:
    serve = [False]
    renewal = Renewal(lambda: serve[0])
    assert renewal.due(at_rest=True) is None
    renewal.wanted(300 << 20)
    assert (renewal.due(at_rest=True), renewal.begun) == (None, False), "the others are away"
    serve[0] = True
    assert (renewal.due(at_rest=False), renewal.begun) == (None, True), "it has a job, and gets no other one"
    serve[0] = False
    assert renewal.due(at_rest=True) == WHY, "it is too late to think better of it"
    assert renewal.ended
    renewal.started()
    assert (renewal.due(at_rest=True), renewal.begun, renewal.ended) == (None, False, True)
    renewal.ready()
    assert not renewal.ended


def test_where_others_serve_it_gets_no_further_job_at_once() -> None:
    """What it keeps may leave no room for one."""
    renewal = Renewal(lambda: True)
    renewal.wanted(300 << 20)
    assert renewal.begun


def test_a_worker_ends_its_job_first_and_gets_no_other(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, second = scene.workers.slots
        scene.start_text_worker()
        scene.start_picture_worker().taken = True
        slot, _ = await scene.workers.begin("a", chat_of("image"), "")
        assert slot is first
        for worker in (first, second):
            assert worker.on_message(GROWN) is False
        assert [worker.renewal_reason() for worker in (first, second)] == [None, None]
        assert [worker.serves for worker in (first, second)] == [False, True], "one at a time"
        assert (await scene.workers.begin("b", chat_of("image"), ""))[0] is second
        waiting = asyncio.create_task(scene.workers.begin("c", chat_of("image"), ""))
        first.on_message(prepared("a"))
        await asyncio.sleep(0)
        assert first.renewal_reason() == WHY and not first.free and scene.workers.n_waiting == 1
        scene.kill_worker(0)
        assert (second.renewal_reason(), second.serves) == (None, True), "the first is not back yet"
        scene.start_worker(0)
        assert (await waiting)[0] is first and first.renewal_reason() is None
        assert (second.renewal_reason(), second.serves) == (None, False)
        second.on_message(prepared("b"))
        assert second.renewal_reason() == WHY

    play(scenario, workers=2)


def test_a_worker_that_is_alone_is_replaced_all_the_same(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server stays ready meanwhile, and is so no longer where that takes long."""

    async def scenario(scene: Scene) -> None:
        (slot,) = scene.workers.slots
        scene.start_text_worker()
        scene.start_picture_worker().taken = True
        slot.on_message(GROWN)
        assert slot.renewal_reason() == WHY
        waiting = asyncio.create_task(scene.workers.begin("a", chat_of("image"), ""))
        await asyncio.sleep(0)
        scene.kill_worker()
        state, error = readiness(scene.service)
        assert (error, state["status"], state["workers_up"]) == (None, "busy", 0)
        monkeypatch.setattr(worker_slot, "REPLACE_SECONDS", 0.0)
        state, error = readiness(scene.service)
        assert error is not None and state["status"] == "workers_down", "it takes too long"
        scene.start_worker()
        assert (await waiting)[0] is slot
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
        assert (text.renewal_reason(), slot.renewal_reason()) == (WHY, None), "one at a time"
        assert (await scene.workers.begin("a", chat_of("text"), ""))[0] is slot
        kill_in(text)
        assert (slot.renewal_reason(), slot.serves) == (None, True), "that of texts is not back yet"
        start_in(text)
        assert (slot.renewal_reason(), slot.serves) == (None, False), "it has a job"
        assert (await scene.workers.begin("b", chat_of("text"), ""))[0] is text

    play(scenario)
