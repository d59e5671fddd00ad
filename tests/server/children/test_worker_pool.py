"""Jobs get a free worker in the order in which they came; a worker's death ends its job and nobody else's."""

from tests.server.doubles import Scene, prepared
from tests.server.scenario import Play, request


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
