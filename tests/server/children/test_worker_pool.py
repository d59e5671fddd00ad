"""Jobs get a free worker in their turn; a worker's death ends its job and nobody else's."""

import asyncio
from typing import Any

import pytest

from server.children.worker_pool import DRAW_SECONDS
from server.children.worker_slot import Job, TookTooLong, WorkerDied, WorkerSlot
from tests.server.doubles import ChannelDouble, Scene, chat_of, prepared, until
from tests.server.scenario import Play
from tokenization.chat.grounding import Box
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat, Kind, Media, Turn
from tokenization.messages import (
    Cancel,
    Draw,
    Drawn,
    Encode,
    Measured,
    Prepare,
    PrepareFailed,
    WorkerPulse,
)

Begun = tuple[WorkerSlot, Job]


def ask(scene: Scene, *names: str) -> "list[asyncio.Task[Begun]]":
    return [asyncio.create_task(scene.workers.begin(name, chat_of("image"), "")) for name in names]


def measured(name: str) -> Measured:
    return Measured(request_id=name, nbytes=(9,), params=("inputs[0]",), n_pads=(4,))


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
            assert slot.free

    play(scenario, workers=2)


@pytest.mark.parametrize("given", [False, True])
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
        assert scene.workers.slots[0].free

    play(scenario)


def test_a_drawing_is_a_job_like_any_other(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        (chat,) = ask(scene, "a")
        await chat
        box = Box(ref="", kind="box", points=((0, 0), (1, 1)), picture=0)
        drawing = asyncio.create_task(
            scene.workers.draw(Draw(request_id="b", media=chat_of("image").media[0], boxes=(box,)), "")
        )
        await until(lambda: scene.workers.n_waiting == 1)
        scene.workers.slots[0].on_message(prepared("a"))
        slot, job = await drawing
        await until(lambda: told(scene) == ["a", "b"])
        slot.on_message(WorkerPulse(request_id="b", busy_seconds=60.0 + DRAW_SECONDS))
        assert slot.hang_reason(0.0) is None
        slot.on_message(Drawn(request_id="b", picture="data:x", notes=()))
        assert isinstance(await job.next(), Drawn) and job.ended.done() and slot.free

    play(scenario)


# ---- death


def test_a_death_ends_the_job_and_those_who_wait_get_the_next_worker(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, waiting = ask(scene, "a", "b")
        slot, job = await first
        reading = asyncio.create_task(job.next())
        await until(lambda: scene.workers.n_waiting == 1)
        scene.kill_worker()
        with pytest.raises(WorkerDied):
            await reading
        assert job.ended.done() and slot.job is None and not slot.free
        assert not waiting.done() and scene.workers.n_waiting == 1
        scene.start_worker()
        _, job = await waiting
        await until(lambda: told(scene) == ["b"])
        slot.on_message(prepared("b"))
        assert await job.next() is not None and slot.free

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
        slot, _ = await waiting
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


@pytest.mark.parametrize("moment", ["handed over", "measured", "leased"])
def test_a_job_that_nobody_wants_is_cancelled_at_once_wherever_it_is(play: Play, moment: str) -> None:
    """Once. The worker stays taken until it has let go."""

    async def scenario(scene: Scene) -> None:
        slot, job = await scene.workers.begin("a", chat_of("image"), "")
        if moment != "handed over":
            slot.on_message(measured("a"))
        if moment == "leased":
            await scene.workers.lease(slot, job, ["x"])
        scene.workers.abandon(slot, job)
        await scene.background.idle()
        assert [said for said in scene.to_worker() if isinstance(said, Cancel)] == [Cancel(request_id="a")]
        assert isinstance(scene.to_worker()[-1], Cancel), "after whatever else it was told"
        assert not job.ended.done() and slot.taken
        slot.on_message(failed("a"))
        assert job.ended.done() and slot.free

    play(scenario)


def test_a_cancel_follows_a_large_chat_that_is_still_on_its_way(play: Play) -> None:
    """A worker would forget one that came first."""

    async def scenario(scene: Scene) -> None:
        state: Any = scene.workers.slots[0]._state
        state.child.channel = slow = SlowToSend()
        slot, job = await scene.workers.begin("a", chat_of("image"), "")
        scene.workers.abandon(slot, job)
        await asyncio.sleep(0.01)
        assert slow.said == []
        slow.go_on.set()
        await scene.background.idle()
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
        slot, job = await scene.workers.begin("a", chat_of("image"), "")
        await scene.background.idle()
        scene.workers.abandon(slot, job)
        slot.on_message(prepared("a"))
        await scene.background.idle()
        assert not any(isinstance(said, Cancel) for said in scene.to_worker())

    play(scenario)


# ---- how long a job may take


def limit(slot: WorkerSlot, request_id: str) -> float:
    """Seconds that its job may take, to a tenth."""
    low, high = 0.0, 10_000.0
    while high - low > 0.1:
        middle = (low + high) / 2
        slot.on_message(WorkerPulse(request_id=request_id, busy_seconds=middle))
        low, high = (middle, high) if slot.hang_reason(0.0) is None else (low, middle)
    return high


def sent(kind: Kind, size: int, *, use_audio: bool = False) -> Chat:
    """A chat with one medium whose source has so many characters."""
    media = Media(kind=kind, source="data:" + "x" * (size - 5), param="m", options=MediaOptions(use_audio=use_audio))
    return Chat(turns=(Turn(role="user", parts=(media,), plain=False),))


@pytest.mark.parametrize(
    ("chat", "seconds"),
    [
        (sent("video", 1000), 60.0),  # it was 240 s
        (sent("video", 10_000_000), 80.0),
        (sent("image", 10_000_000), 80.0),
        (sent("audio", 400_000), 80.8),
        (sent("audio", 60_000_000), 60.0 + 60.0 + 120.0),  # no more than a tenth of what a sound may last
        (sent("video", 400_000, use_audio=True), 80.8),
        (chat_of(*["video"] * 1000), 60.0),
    ],
)
def test_the_time_of_a_job_grows_with_its_bytes(play: Play, chat: Chat, seconds: float) -> None:
    async def scenario(scene: Scene) -> None:
        slot, _ = await scene.workers.begin("a", chat, "")
        assert limit(slot, "a") == pytest.approx(seconds, abs=0.2)
        slot.on_message(prepared("a"))

    play(scenario)


def test_what_a_worker_has_measured_gives_it_time(play: Play) -> None:
    """By the work of decoding, which is known then; measured again, it counts once."""

    async def scenario(scene: Scene) -> None:
        slot, _ = await scene.workers.begin("a", sent("video", 1000), "")
        for _ in range(2):
            slot.on_message(Measured(request_id="a", nbytes=(1,), params=("m",), n_pads=(2,), seconds=300.0))
            assert limit(slot, "a") == pytest.approx(360.0, abs=0.2)
        slot.on_message(prepared("a"))

    play(scenario)


def test_media_that_no_worker_opens_buy_no_time(play: Play) -> None:
    async def scenario(scene: Scene) -> None:  # its workers open at most 4 media
        media = tuple(part for size in (10**6,) * 40 for turn in sent("video", size).turns for part in turn.parts)
        slot, _ = await scene.workers.begin("a", Chat(turns=(Turn(role="user", parts=media, plain=False),)), "")
        assert limit(slot, "a") == pytest.approx(60.0 + 4 * 2.0, abs=0.2)
        slot.on_message(prepared("a"))

    play(scenario)


@pytest.mark.parametrize(("kind", "silent"), [("video", 0.0), ("image", 0.0), ("text", 0.0), ("video", 19.0)])
def test_a_job_that_gets_no_further_is_ended_though_its_worker_pulses(play: Play, kind: str, silent: float) -> None:
    """A call into a decoder that does not return lets the pulse go on; one that holds the lock does not."""

    async def scenario(scene: Scene) -> None:
        chat = chat_of(kind)
        slot, job = await scene.workers.begin("a", chat, "")
        most = 20.0 - silent
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=21.0, still_seconds=most))
        assert slot.hang_reason(silent) is None
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=21.5, still_seconds=most + 0.5))
        assert slot.hang_reason(silent) == "20 s in one call of a job"
        scene.kill_worker()
        with pytest.raises(TookTooLong) as caught:
            await job.next()
        assert round(caught.value.seconds) == 20

    play(scenario)


def test_a_long_text_may_be_one_call_for_longer(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        slot, _ = await scene.workers.encode(Encode(request_id="a", text="x" * 4_000_000), "")
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=59.0, still_seconds=59.0))
        assert slot.hang_reason(0.0) is None
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=61.0, still_seconds=61.0))
        assert slot.hang_reason(0.0) is not None
        slot.on_message(prepared("a"))

    play(scenario)
