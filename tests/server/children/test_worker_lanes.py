"""Texts have a worker of their own, and whoever was given least of the workers' time comes first."""

import asyncio

import msgspec
import pytest

from server.children.workers import WorkerDied, WorkerJob
from tests.server.doubles import Scene, chat_of, kill_in, prepared, start_in, told_in, until
from tests.server.scenario import Play, begun
from tokenization.chat.grammar import CompiledGrammar, Grammar
from tokenization.messages import Compile, Compiled, Encode, Prepare


def told(scene: Scene) -> list[str]:
    """Whose chats the only worker for media was handed."""
    return [said.request_id for said in scene.to_worker() if isinstance(said, Prepare)]


def begin(scene: Scene, name: str, *kinds: str, client: str = "") -> "asyncio.Task[WorkerJob]":
    return asyncio.create_task(begun(scene, name, chat_of(*kinds), client))


def test_texts_do_not_wait_for_media(play: Play) -> None:
    """The only worker has a video and nine more wait: a text, a prompt and a count are done meanwhile."""

    async def scenario(scene: Scene) -> None:
        text = scene.start_text_worker()
        for number in range(10):
            begin(scene, f"video{number}", "text", "video")
        await until(lambda: scene.workers.n_waiting == 9)
        for name in ("text", "count"):
            job = await begun(scene, name, chat_of("text"), count_only=name == "count")
            assert job.worker is text
            text.on_message(prepared(name))
        raw = await scene.workers.begin(Encode(request_id="raw", text="Hi"), "")
        assert raw.worker is text and scene.workers.n_waiting_in("text") == 0 and scene.workers.n_waiting == 9
        begin(scene, "another", "text")
        await until(lambda: scene.workers.n_waiting_in("text") == 1)
        assert told(scene) == ["video0"], "no other medium went there"
        text.on_message(prepared("raw"))
        await until(lambda: [said.request_id for said in told_in(text)] == ["text", "count", "raw", "another"])

    play(scenario)


def test_a_text_takes_a_free_worker_while_its_own_is_busy_or_down(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        text = scene.start_text_worker()
        first = (await begin(scene, "long", "text")).worker
        second = (await begin(scene, "b", "text")).worker
        assert (first, second) == (text, scene.workers.slots[0])
        scene.workers.slots[0].on_message(prepared("b"))
        kill_in(text)
        third = (await begin(scene, "c", "text")).worker
        assert third is scene.workers.slots[0]
        waiting = begin(scene, "d", "text")
        await until(lambda: scene.workers.n_waiting_in("text") == 1)
        start_in(text)
        assert (await waiting).worker is text

    play(scenario)


def test_forms_never_have_every_worker_of_media(play: Play) -> None:
    """A hostile one takes seconds, whatever it is; here they are six clients' and come first."""

    async def scenario(scene: Scene) -> None:
        last = scene.workers.slots[-1]
        forms = [Compile(request_id=f"f{i}", grammar=Grammar(kind="regex", source="a", param="p")) for i in range(6)]
        compiling = [asyncio.create_task(scene.workers.begin(one, one.request_id)) for one in forms]
        await until(lambda: sum(task.done() for task in compiling) == 2)
        assert last.state == "free" and scene.workers.n_waiting == 4
        video = (await begin(scene, "video", "text", "video")).worker
        assert video is last, "and it gets no form behind the video, while the others have two"
        last.on_message(prepared("video"))
        assert last.state == "free" and scene.workers.n_waiting == 4
        for i, slot in enumerate(scene.workers.slots[:2]):
            slot.on_message(Compiled(request_id=f"f{i}", grammar=CompiledGrammar(source="")))
        await until(lambda: sum(task.done() for task in compiling) == 4)
        for task in compiling:
            task.cancel()

    play(scenario, workers=3)


def test_a_text_of_megabytes_does_not_hold_up_the_others(play: Play) -> None:
    """Longer than what fits into any model's prompt: it takes its turn among the media."""

    async def scenario(scene: Scene) -> None:
        text = scene.start_text_worker()
        long = Encode(request_id="long", text="x" * 4_000_000)
        slot = scene.workers.slots[0]
        assert (await scene.workers.begin(long, "")).worker is slot
        waiting = asyncio.create_task(scene.workers.begin(msgspec.structs.replace(long, request_id="b"), ""))
        await until(lambda: scene.workers.n_waiting == 1)
        assert scene.workers.n_waiting_in("text") == 0 and text.state == "free"
        assert (await begin(scene, "c", "text")).worker is text
        slot.on_message(prepared("long"))
        assert (await waiting).worker is slot

    play(scenario)


def test_texts_go_on_where_no_worker_for_media_can_be_started(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        text = scene.start_text_worker()
        await begin(scene, "a", "text")
        await begin(scene, "b", "image")
        waiting = begin(scene, "c", "text"), begin(scene, "d", "image")
        await until(lambda: scene.workers.n_waiting == 2)
        scene.kill_worker()
        for _ in range(3):
            scene.start_worker(ready=False)
            scene.kill_worker()
        with pytest.raises(WorkerDied):
            await waiting[1]
        text.on_message(prepared("a"))
        assert (await waiting[0]).worker is text

    play(scenario)


def test_a_client_with_videos_gives_way_to_one_with_a_picture_and_to_its_own_thumbnail(play: Play) -> None:
    """Whoever was given least comes first; what a job took is known when it ends, or when its worker dies."""

    async def scenario(scene: Scene) -> None:
        for number in range(3):
            begin(scene, f"video{number}", "video", client="a")
        begin(scene, "thumbnail", "image", client="a")
        begin(scene, "picture", "image", client="b")
        order = ["video0", "picture", "thumbnail", "video1", "video2"]
        await until(lambda: scene.workers.n_waiting == 4)
        for n, name in enumerate(order, 1):
            await until(lambda n=n: told(scene) == order[:n])  # type: ignore[misc]
            scene.workers.slots[0].on_message(prepared(name))
        assert scene.workers._line._clocks._clocks == {}, "nobody is owed anything"

    play(scenario)


# ---- pictures


def test_a_picture_does_not_wait_for_videos(play: Play) -> None:
    """The only worker has a video and nine more wait: the one for pictures takes pictures alone."""

    async def scenario(scene: Scene) -> None:
        own = scene.start_picture_worker()
        for number in range(10):
            begin(scene, f"video{number}", "text", "video")
        await until(lambda: scene.workers.n_waiting == 9)
        both = begin(scene, "both", "image", "video")
        await until(lambda: scene.workers.n_waiting == 10)
        for name in ("a", "b"):
            assert (await begin(scene, name, "text", "image")).worker is own
            waiting = begin(scene, f"next to {name}", "image")
            await until(lambda: scene.workers.n_waiting_in("picture") == 1)
            own.on_message(prepared(name))
            assert (await waiting).worker is own
            own.on_message(prepared(f"next to {name}"))
        assert not both.done() and own.state == "free" and told(scene) == ["video0"]

    play(scenario)


def test_a_picture_takes_the_worker_of_all_media_while_that_is_free(play: Play) -> None:
    """So the one for pictures is free for whoever comes while a video runs."""

    async def scenario(scene: Scene) -> None:
        own = scene.start_picture_worker()
        first = (await begin(scene, "a", "image")).worker
        second = (await begin(scene, "b", "image")).worker
        assert (first, second) == (scene.workers.slots[0], own)

    play(scenario)


def test_pictures_that_take_long_wait_for_another_worker(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        own = scene.start_picture_worker()
        slot = scene.workers.slots[0]
        assert (await begin(scene, "video", "video")).worker is slot
        again = asyncio.create_task(begun(scene, "long", chat_of("image"), short=False))
        await until(lambda: scene.workers.n_waiting_in("media") == 1)
        assert own.state == "free" and scene.workers.n_waiting_in("picture") == 0
        slot.on_message(prepared("video"))
        assert (await again).worker is slot

    play(scenario)
