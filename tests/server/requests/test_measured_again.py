"""A worker that finds a damaged video measures anew: the first leases go back, the new ones are all that is out."""

import msgspec

from server.http.answer_fields import usage
from server.requests.service import accepted
from tests.server.doubles import Scene, prepared, until
from tests.server.scenario import A, Play, fails, generating, leased, request, start
from tokenization.messages import Cancel, Leases, Measured, MediaItem, PrepareFailed


def measured_again(scene: Scene, nbytes: tuple[int, ...]) -> None:
    params = tuple(f"inputs[{i}]" for i in range(len(nbytes)))
    found = Measured(request_id="chat-1", nbytes=nbytes, params=params, n_pads=(4,) * len(nbytes))
    scene.workers.slots[0].on_message(found)


def test_the_first_leases_are_given_back_before_the_second_are_made(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image", "image")
        task, _ = start(scene, asked)
        first = await leased(scene, asked, (100, 600_000))  # twice as much would not fit into the pool
        measured_again(scene, (100, 580_000))
        await until(lambda: isinstance(scene.to_worker()[-1], Leases) and scene.to_worker()[-1].names != first)
        second = scene.to_worker()[-1].names
        assert len(second) == 2 and not set(first) & set(second)
        lying = {path.name for path in scene.owner.root.iterdir()}
        assert set(second) <= lying and not set(first) & lying
        assert (await scene.stats()).leases == 2
        await generating(scene, media=2)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_a_client_that_leaves_meanwhile_leaves_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        await leased(scene, asked, (1000,))
        task.cancel()
        await until(task.done)
        measured_again(scene, (500,))
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)


def test_what_is_measured_again_may_be_refused(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        await leased(scene, asked, (1000,))
        measured_again(scene, (1 << 20,))
        await fails(task, "invalid_request", "media_too_large", "inputs[0]")
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)


def test_a_video_and_a_sound_give_their_worker_more_time_than_a_picture(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        slot, allowed = scene.workers.slots[0], {}
        for kind in ("text", "image", "audio", "video"):
            _, job = await scene.workers.begin("chat-1", request(kind).chat)
            slot._busy_seconds = 0.0
            while slot.hang_reason() is None:
                slot._busy_seconds += 5
            allowed[kind] = slot._busy_seconds
            slot.on_message(prepared("chat-1"))
            assert job.ended.done()
        assert allowed["text"] < allowed["image"] < allowed["audio"] < allowed["video"] <= 300

    play(scenario)


def test_media_that_no_worker_opens_buy_no_time(play: Play) -> None:
    async def scenario(scene: Scene) -> None:  # its workers open at most 4 media
        slot = scene.workers.slots[0]
        for kinds in (["video"] * 4, ["image"] * 1000 + ["video"] * 1000):
            await scene.workers.begin("chat-1", request(*kinds).chat)
            slot._busy_seconds = 60.0 + 4 * 180.0
            assert slot.hang_reason() is None, "whichever of them are opened"
            slot._busy_seconds += 0.1
            assert slot.hang_reason() is not None
            slot.on_message(prepared("chat-1"))

    play(scenario)


def test_tokens_are_counted_by_kind() -> None:
    def item(kind: str, *spans: tuple[int, int]) -> MediaItem:
        return MediaItem(kind=kind, spans=spans, grid=(1, 2, 2))  # type: ignore[arg-type]

    media = (item("image", (0, 4)), item("video", (5, 6), (12, 2)), item("audio", (14, 3), (20, 2)))
    found = accepted(msgspec.structs.replace(prepared("chat-1", 40), media=media))
    assert (found.prompt_tokens, found.media_tokens, found.video_tokens, found.audio_tokens) == (40, 17, 8, 5)
    assert usage(found, 3)["prompt_tokens_details"] == {"image_tokens": 4, "video_tokens": 8, "audio_tokens": 5}
