"""What a worker says is taken for its own job alone, and a job that was killed for its time is known as such."""

import asyncio
from typing import Any

import pytest

from server.children.workers import WorkerDied
from shm import ChannelError
from tests.server.doubles import ChannelDouble, Scene, chat_of, prepared, until
from tests.server.scenario import Play, begun
from tests.server.tables import each_of
from tokenization.messages import Prepare, PrepareFailed, WorkerPulse


class TooLong(ChannelDouble):
    """Takes what is said, except of one request."""

    async def send(self, message: Any, *, large: bool = False) -> None:
        if message.request_id == "long":
            raise ChannelError("a message of 9 bytes exceeds the limit of 8")
        await super().send(message)


def test_a_chat_that_cannot_be_sent_fails_alone(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        child: Any = scene.workers.slots[0].child
        child.channel = TooLong()
        first, following = (asyncio.create_task(begun(scene, name, chat_of("image"))) for name in ("long", "b"))
        job = await first
        (answer,) = await job.next()
        assert isinstance(answer, PrepareFailed) and answer.kind == "bad_request"
        assert "exceeds the limit" in answer.message and job.ended.is_set()
        slot = (await following).worker
        assert slot is not None
        await until(lambda: any(isinstance(said, Prepare) for said in scene.to_worker()))
        assert slot.up
        slot.on_message(prepared("b"))

    play(scenario)


def test_an_answer_to_nobody_is_not_taken_for_the_jobs(play: Play, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(scene: Scene) -> None:
        job = await begun(scene, "a", chat_of("text"))
        slot = scene.workers.slots[0]
        slot.on_message(prepared("b"))
        assert not job.ended.is_set() and slot.job is job
        slot.on_message(prepared("a"))
        slot.on_message(prepared("a"))
        assert [record.message for record in caplog.records] == [
            "a worker answered a request that it does not have"
        ] * 2

    play(scenario)


def test_a_worker_that_is_started_again_has_been_busy_with_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        slot = scene.workers.slots[0]
        slot.on_message(WorkerPulse(request_id=None, busy_seconds=60.0))
        assert slot.liveness.overdue(0.0) is None
        slot.on_message(WorkerPulse(request_id=None, busy_seconds=60.1))
        assert slot.liveness.overdue(0.0) == "60 s on one job"
        scene.kill_worker()
        scene.start_worker()
        assert slot.liveness.overdue(0.0) is None

    play(scenario)


@each_of(("busy", "killed"), [(59.9, False), (60.1, True)])
def test_whoever_waits_learns_whether_its_job_was_killed_for_its_time(play: Play, busy: float, killed: bool) -> None:
    async def scenario(scene: Scene) -> None:
        job = await begun(scene, "a", chat_of("image"))
        slot = scene.workers.slots[0]
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=busy))
        slot.liveness.overdue(0.0)
        scene.kill_worker()
        with pytest.raises(WorkerDied) as caught:
            await job.next()
        assert (caught.value.exceeded is not None) == killed

    play(scenario)


def test_the_time_of_a_job_that_ended_is_not_the_next_ones(play: Play) -> None:
    """A text gets a worker right after a video that took long: the last pulse was about the video."""

    async def scenario(scene: Scene) -> None:
        slot = (await begun(scene, "a", chat_of("video"))).worker
        assert slot is not None
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=200.0))
        slot.on_message(prepared("a"))
        await begun(scene, "b", chat_of("text"))
        assert slot.liveness.overdue(0.0) is None
        slot.on_message(prepared("b"))

    play(scenario)
