"""The engine has so many places, given first come, first served; its death ends those inside and nobody else."""

import asyncio
from typing import Any

import pytest

from model.engine.messages import Generate
from server.children.engine_client import EngineDied, EngineFailed, Stream
from shm import ChannelError
from tests.server.doubles import ChannelDouble, Scene, until
from tests.server.scenario import Play, generate
from tests.server.tables import each_of


def ask(scene: Scene, *names: str) -> "list[asyncio.Task[Stream]]":
    return [asyncio.create_task(scene.engine.submit(generate(name))) for name in names]


def told(scene: Scene) -> list[str]:
    """Whose requests the engine was handed."""
    return [said.request_id for said in scene.to_engine() if isinstance(said, Generate)]


# ---- places


def test_places_are_bounded_and_given_in_the_order_of_coming(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        ask(scene, "a", "b", "c", "d")
        await until(lambda: scene.engine.n_waiting == 2 and told(scene) == ["a", "b"])
        assert len(scene.engine._inside) == 2
        for done, inside in (("b", ["a", "b", "c"]), ("a", ["a", "b", "c", "d"])):
            scene.finished(done, "done")
            await until(lambda inside=inside: told(scene) == inside)  # type: ignore[misc]
            assert len(scene.engine._inside) == 2
        assert scene.engine.n_waiting == 0
        for name in ("c", "d"):
            scene.finished(name, "done")
        assert len(scene.engine._inside) == 0

    play(scenario, seqs=2)


def test_a_client_that_has_none_gets_a_place_however_many_others_have_some(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        clients = ["a", "a", "a", "b", "c", "d", "e"]
        for i, client in enumerate(clients):
            asyncio.create_task(scene.engine.submit(generate(f"{client}{i}"), client))  # noqa: RUF006 - ended by play
            await until(lambda i=i: len(scene.engine._inside) + scene.engine.n_waiting == i + 1)  # type: ignore[misc]
        await until(lambda: told(scene) == ["a0", "a1", "b3", "c4", "d5", "e6"])
        assert scene.engine.n_waiting == 1
        for name in ("a0", "a1", "b3", "c4", "d5", "e6"):
            scene.finished(name, "done")
        await until(lambda: told(scene)[-1] == "a2")
        scene.finished("a2", "done")

    play(scenario, seqs=2)


@each_of("given", [False, True])
def test_a_waiter_that_left_gives_its_place_to_the_next(play: Play, given: bool) -> None:
    """Also when it leaves after the place was given to it and before it could take it."""

    async def scenario(scene: Scene) -> None:
        _, left, following = ask(scene, "a", "b", "c")
        await until(lambda: scene.engine.n_waiting == 2)
        if given:
            scene.finished("a", "done")
            assert not left.done()
        left.cancel()
        await asyncio.wait({left})
        if not given:
            assert scene.engine.n_waiting == 1
            scene.finished("a", "done")
        await following
        assert left.cancelled()
        await until(lambda: told(scene) == ["a", "c"])
        scene.finished("c", "done")
        (last,) = ask(scene, "d")
        await last
        assert len(scene.engine._inside) == 1
        scene.finished("d", "done")

    play(scenario, seqs=1)


def test_nobody_enters_before_the_engine_is_ready(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.kill_engine()
        (asked,) = ask(scene, "a")
        await until(lambda: scene.engine.n_waiting == 1)
        scene.start_engine(ready=False)
        await asyncio.sleep(0.01)
        assert not asked.done() and scene.to_engine() == []
        scene.kill_engine()
        scene.start_engine()
        await asked
        scene.finished("a", "done")

    play(scenario)


# ---- death


def test_a_death_ends_the_streams_inside_and_those_who_wait_survive(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, waiting = ask(scene, "a", "b")
        inside = await first
        reading = asyncio.create_task(inside.next())
        await until(lambda: scene.engine.n_waiting == 1)
        scene.kill_engine()
        with pytest.raises(EngineDied):
            await reading
        assert inside.ended.is_set() and len(scene.engine._inside) == 0
        assert not waiting.done() and scene.engine.n_waiting == 1
        scene.start_engine()
        await waiting
        await until(lambda: told(scene) == ["b"])
        scene.finished("b", "done")

    play(scenario, seqs=1)


def test_a_place_in_an_engine_that_died_meanwhile_is_waited_for_again(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        _, waiting = ask(scene, "a", "b")
        await until(lambda: scene.engine.n_waiting == 1)
        scene.finished("a", "done")  # "b" is given the place, and does not know it yet
        scene.kill_engine()
        await until(lambda: scene.engine.n_waiting == 1)
        assert not waiting.done() and len(scene.engine._inside) == 0
        scene.start_engine()
        await until(lambda: told(scene) == ["b"])
        scene.finished("b", "done")
        assert (await waiting).ended.is_set()

    play(scenario, seqs=1)


def test_those_who_wait_are_told_when_no_engine_can_be_started(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.kill_engine()
        waiting = ask(scene, "a", "b")
        await until(lambda: scene.engine.n_waiting == 2)
        for _ in range(2):
            scene.start_engine(ready=False)
            scene.kill_engine()
        await asyncio.sleep(0.01)
        assert not any(task.done() for task in waiting)
        scene.start_engine(ready=False)
        scene.kill_engine()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [EngineDied, EngineDied] and scene.engine.n_waiting == 0

    play(scenario)


class TooLong(ChannelDouble):
    """Takes what is said, except of one request."""

    async def send(self, message: Any, *, large: bool = False) -> None:
        if message.request_id == "long":
            raise ChannelError("a message of 9 bytes exceeds the limit of 8")
        await super().send(message)


def test_what_cannot_be_sent_fails_its_request_alone(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        child: Any = scene.engine.child
        child.channel = TooLong()
        first, following = ask(scene, "long", "b")
        stream = await first
        with pytest.raises(EngineFailed, match="exceeds the limit") as caught:
            await stream.next()
        assert caught.value.code == "internal" and stream.ended.is_set()
        await following
        await until(lambda: told(scene) == ["b"])
        assert scene.engine.up
        scene.finished("b", "done")

    play(scenario, seqs=1)


def test_a_channel_that_is_closed_leaves_the_word_to_the_reaper(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        child: Any = scene.engine.child
        child.channel.close()
        (asked,) = ask(scene, "a")
        stream = await asked
        await scene.idle()
        assert not stream.ended.is_set(), "nobody knows yet that the engine reads its segments no more"
        scene.kill_engine()
        with pytest.raises(EngineDied):
            await stream.next()

    play(scenario)
