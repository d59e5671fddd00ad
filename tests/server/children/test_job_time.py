"""How long a job may take: by its bytes, by what its worker has measured, and without getting further."""

import pytest

from server.children.workers import Worker, WorkerDied
from tests.server.doubles import Scene, chat_of, prepared
from tests.server.scenario import Play, begun
from tests.server.tables import each_of
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat, Kind, Media, Turn
from tokenization.messages import Encode, Measured, WorkerPulse


def limit(slot: Worker, request_id: str) -> float:
    """Seconds that its job may take, to a tenth."""
    low, high = 0.0, 10_000.0
    while high - low > 0.1:
        middle = (low + high) / 2
        slot.on_message(WorkerPulse(request_id=request_id, busy_seconds=middle))
        low, high = (middle, high) if slot.liveness.overdue(0.0) is None else (low, middle)
    return high


def sent(kind: Kind, size: int, *, use_audio: bool = False) -> Chat:
    """A chat with one medium whose source has so many characters."""
    media = Media(kind=kind, source="data:" + "x" * (size - 5), param="m", options=MediaOptions(use_audio=use_audio))
    return Chat(turns=(Turn(role="user", parts=(media,), plain=False),))


@each_of(
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
        slot = (await begun(scene, "a", chat)).worker
        assert slot is not None
        assert limit(slot, "a") == pytest.approx(seconds, abs=0.2)
        slot.on_message(prepared("a"))

    play(scenario)


def test_what_a_worker_has_measured_gives_it_time(play: Play) -> None:
    """By the work of decoding, which is known then; measured again, it counts once."""

    async def scenario(scene: Scene) -> None:
        slot = (await begun(scene, "a", sent("video", 1000))).worker
        assert slot is not None
        for _ in range(2):
            slot.on_message(Measured(request_id="a", nbytes=(1,), params=("m",), n_tokens=(2,), seconds=300.0))
            assert limit(slot, "a") == pytest.approx(360.0, abs=0.2)
        slot.on_message(prepared("a"))

    play(scenario)


def test_media_that_no_worker_opens_buy_no_time(play: Play) -> None:
    async def scenario(scene: Scene) -> None:  # its workers open at most 4 media
        media = tuple(part for size in (10**6,) * 40 for turn in sent("video", size).turns for part in turn.parts)
        slot = (await begun(scene, "a", Chat(turns=(Turn(role="user", parts=media, plain=False),)))).worker
        assert slot is not None
        assert limit(slot, "a") == pytest.approx(60.0 + 4 * 2.0, abs=0.2)
        slot.on_message(prepared("a"))

    play(scenario)


@each_of(("kind", "silent"), [("video", 0.0), ("image", 0.0), ("text", 0.0), ("video", 19.0)])
def test_a_job_that_gets_no_further_is_ended_though_its_worker_pulses(play: Play, kind: str, silent: float) -> None:
    """A call into a decoder that does not return lets the pulse go on; one that holds the lock does not."""

    async def scenario(scene: Scene) -> None:
        chat = chat_of(kind)
        job = await begun(scene, "a", chat)
        slot = scene.workers.slots[0]
        most = 20.0 - silent
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=21.0, still_seconds=most))
        assert slot.liveness.overdue(silent) is None
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=21.5, still_seconds=most + 0.5))
        assert slot.liveness.overdue(silent) == "20 s in one call of a job"
        scene.kill_worker()
        with pytest.raises(WorkerDied) as caught:
            await job.next()
        assert caught.value.exceeded is not None and round(caught.value.exceeded) == 20

    play(scenario)


def test_a_long_text_may_be_one_call_for_longer(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        await scene.workers.begin(Encode(request_id="a", text="x" * 4_000_000), "")
        slot = scene.workers.slots[0]
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=59.0, still_seconds=59.0))
        assert slot.liveness.overdue(0.0) is None
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=61.0, still_seconds=61.0))
        assert slot.liveness.overdue(0.0) is not None
        slot.on_message(prepared("a"))

    play(scenario)
