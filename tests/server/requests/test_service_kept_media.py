"""Media whose embeddings the engine keeps get no lease; where they are gone, the request is prepared once more."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from model.engine.messages import Abort, Generate, MediaKept
from server.request_context import RequestContext
from server.requests.request import CacheSalts, ChatRequest
from server.requests.segments import RequestResources
from tests.server.doubles import EmitDouble, Scene, chat_of, prepared, until, value_of
from tests.server.http.exchanges import bodies, body_of
from tests.server.scenario import A, B, Play, fails, generating, leased, request, start, told_to_prepare
from tests.tables import each_of
from tokenization.chat.parts import Chat, Fetched, Media, Turn
from tokenization.messages import Cancel, Leases, Measured, Prepare, PrepareFailed

CAT, DOG = b"c" * 32, b"d" * 32


async def measured(scene: Scene, asked: ChatRequest, *keys: bytes, nbytes: int = 100) -> tuple[str, ...]:
    """Play the worker up to Leases; the names."""
    await until(lambda: scene.to_worker() and told_to_prepare(scene.to_worker()[-1], asked.id))
    params = tuple(media.param for media in asked.chat.media)
    n = len(params)
    scene.workers.slots[0].on_message(
        Measured(request_id=asked.id, nbytes=(nbytes,) * n, params=params, n_tokens=(4,) * n, keys=keys)
    )
    await until(lambda: isinstance(scene.to_worker()[-1], Leases))
    names: tuple[str, ...] = scene.to_worker()[-1].names
    return names


def keeps(scene: Scene, *keys: bytes, gone: tuple[bytes, ...] = ()) -> None:
    scene.engine.on_message(MediaKept(gone=gone, kept=tuple((key, 10) for key in keys)))


async def evicted(
    scene: Scene, *keys: bytes, nbytes: int = 100
) -> "tuple[asyncio.Task[None], EmitDouble, ChatRequest]":
    """A request that came for what is gone, and whose worker has the job again."""
    asked = request(*["image"] * len(keys))
    task, sink = start(scene, asked)
    await measured(scene, asked, *keys, nbytes=nbytes)
    await generating(scene, media=len(keys))
    scene.finished("chat-1", "failed", code="media_evicted", message="gone")
    await until(lambda: told_to_prepare(scene.to_worker()[-1], asked.id))
    return task, sink, asked


async def again(scene: Scene, media: int) -> Generate:
    """Play the worker's second answer and wait for what the engine is told."""
    n = len(scene.to_engine())
    scene.workers.slots[0].on_message(prepared("chat-1", 5, media))
    await until(lambda: len(scene.to_engine()) > n)
    told = scene.to_engine()[-1]
    assert isinstance(told, Generate)
    return told


def test_a_lease_for_each_that_is_not_kept(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT, DOG)
        keeps(scene, gone=(DOG,))
        asked = request("image", "image", "image")
        task, _ = start(scene, asked)
        names = await measured(scene, asked, CAT, DOG, CAT)
        assert (names[0], names[2]) == ("", "") and names[1] and (await scene.stats()).leases == 1
        await generating(scene, media=3)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_nothing_is_leased_where_all_is_kept(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        asked = request("image")
        task, _ = start(scene, asked)
        assert await measured(scene, asked, CAT, nbytes=1 << 30) == ("",), "whatever it would have taken"
        stats = await scene.stats()
        assert stats.leases == 0 and stats.path_files == 0
        await generating(scene, media=1)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_what_is_gone_is_prepared_again_and_the_client_notices_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        task, sink, asked = await evicted(scene, CAT)
        first = scene.to_engine()[-1]
        names = await measured(scene, asked, CAT)
        assert all(names), "the view still has it, and is not believed"
        second = await again(scene, 1)
        assert isinstance(first, Generate) and first is not second
        assert (first.sampling, first.salt) == (second.sampling, second.salt), "its seed, too"
        scene.say("chat-1", A, B, finish="stop")
        await task
        assert [token.id for delta in sink.deltas for token in delta.tokens] == [A, B]
        assert value_of(scene.metrics, "e2e_request_latency_seconds_count") == 1
        assert value_of(scene.metrics, "prompt_tokens_total") == 5
        assert scene.service.admission.n_active == 0

    play(scenario)


def test_leases_of_the_first_time_are_given_back_before_the_second(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        task, _, asked = await evicted(scene, CAT, DOG, nbytes=500_000)  # three of these do not fit into the pool
        assert (await scene.stats()).leases == 0
        assert all(await measured(scene, asked, CAT, DOG, nbytes=500_000)) and (await scene.stats()).leases == 2
        await again(scene, 2)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_it_is_not_tried_a_third_time(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        task, _, asked = await evicted(scene, CAT)
        await measured(scene, asked, CAT)
        await again(scene, 1)
        scene.finished("chat-1", "failed", code="media_evicted", message="gone")
        await fails(task, "internal", "internal")

    play(scenario)


def test_a_client_that_leaves_meanwhile_leaves_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        task, _, asked = await evicted(scene, CAT)
        await measured(scene, asked, CAT)
        task.cancel()
        await until(task.done)
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        assert not any(isinstance(said, Abort) for said in scene.to_engine()), "the engine has forgotten it"
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)


def test_a_worker_that_dies_of_the_second_time_is_replaced_as_ever(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        task, _, asked = await evicted(scene, CAT)
        await measured(scene, asked, CAT)
        scene.kill_worker()
        scene.start_worker()
        assert all(await measured(scene, asked, CAT))
        await again(scene, 1)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_a_dead_engine_keeps_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        keeps(scene, CAT)
        scene.kill_engine()
        assert not scene.engine.kept
        scene.start_engine()
        asked = request("image")
        task, _ = start(scene, asked)
        assert all(await measured(scene, asked, CAT))
        await generating(scene, media=1)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_one_salt_for_media_and_blocks_and_forms(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        for name, salts in (("chat-1", None), ("chat-2", CacheSalts("key"))):
            if salts is not None:
                scene.service._salts = salts
            asked = request(name=name)
            task, _ = start(scene, asked)
            await until(lambda: scene.to_worker() and isinstance(scene.to_worker()[-1], Prepare))
            told = await generating(scene, name)
            prepare = [said for said in scene.to_worker() if isinstance(said, Prepare)][-1]
            assert prepare.request_id == name
            assert prepare.salt == (b"" if salts is None else told.salt)
            assert told.salt and (salts is None or told.salt == salts.of(asked)), "forms are remembered for their salt"
            scene.say(name, A, finish="stop")
            await task

    play(scenario)


def test_whose_salt_it_is() -> None:
    def asked(key: str = "", cache_salt: str = "") -> ChatRequest:
        return ChatRequest(
            id="x", chat=chat_of("text"), chat_param="inputs", context=RequestContext(key=key), cache_salt=cache_salt
        )

    one, other, all_one = CacheSalts("key"), CacheSalts("key"), CacheSalts("server")
    found = {
        one.of(request)
        for request in (
            asked(),
            asked("k"),
            asked("l"),
            asked("k", "a"),
            asked("k", "b"),
            asked("", "k\n"),
            asked("k\n"),
        )
    }
    assert len(found) == 7 and all(len(salt) == 32 for salt in found)
    assert one.of(asked("k", "a")) == one.of(asked("k", "a")) != other.of(asked("k", "a"))
    assert all_one.of(asked("k")) == all_one.of(asked("l")) != all_one.of(asked("k", "a"))
    assert all_one.of(asked("k", "\ud800")), "half a character is a salt, too"


@each_of(("grounding", "kept"), [("none", 495), ("boxes", 495), ("drawn", 200_500)])
def test_media_are_let_go_of_when_the_answer_begins_and_no_sooner(play: Play, grounding: Any, kept: int) -> None:
    """A request whose embeddings are gone is prepared out of them once more. A preempted one needs them no more."""

    async def scenario(scene: Scene) -> None:
        scene.service.card = replace(scene.service.card, supports_grounding=True)
        body = body_of(bodies(), "c")
        assert body.hold(200_500)
        picture = Media(kind="image", source="data:" + "A" * 200_000, param="inputs[0]")
        chat = Chat(turns=(Turn(role="user", parts=(picture,), plain=False),))
        context = RequestContext(client="c", body=body)
        task, _ = start(scene, replace(request(), chat=chat, context=context, grounding=grounding))
        await leased(scene, replace(request(), chat=chat))
        await generating(scene, media=1)
        assert body.held == 200_500 and len(str(picture.source)) == 200_005
        scene.say("chat-1", A)
        await until(lambda: context.generation_tokens)
        assert (body.held, bool(picture.source)) == (kept, grounding == "drawn")
        scene.say("chat-1", B, finish="stop")
        await task

    play(scenario)


def test_pictures_to_draw_on_take_half_of_the_room_of_bodies(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.service.card = replace(scene.service.card, supports_grounding=True)
        body = body_of(bodies(), "c")
        assert body.hold(600_000)
        context = RequestContext(client="c", body=body)
        task, _ = start(scene, replace(request("image"), context=context, grounding="drawn"))
        await fails(task, "overloaded", "bodies_full")

    play(scenario)


def test_media_beside_one_by_url_are_let_go_of_too(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the request as it was asked and the one whose media were fetched hold them."""

    async def scenario(scene: Scene) -> None:
        data = "data:" + "A" * 200_000
        asked = [Media(kind="image", source=data, param="inputs[0]")]
        asked += [Media(kind="image", source="http://a.test/", param="inputs[1]")]
        found = [msgspec.structs.replace(asked[0]), msgspec.structs.replace(asked[1], source=Fetched(data=b"f" * 1000))]

        def request_of(media: list[Media]) -> ChatRequest:
            return replace(request(), chat=Chat(turns=(Turn(role="user", parts=tuple(media), plain=False),)))

        async def fetched(self: RequestResources, request: ChatRequest, timings: object = None) -> ChatRequest:
            assert request.context.body is not None and request.context.body.hold(1000)
            return replace(request, chat=request_of(found).chat)

        monkeypatch.setattr(RequestResources, "with_media", fetched)
        body = body_of(bodies(), "c")
        assert body.hold(200_500)
        context = RequestContext(client="c", body=body)
        task, _ = start(scene, replace(request_of(asked), context=context))
        await leased(scene, request_of(found), (100, 100))
        await generating(scene, media=2)
        assert body.held == 201_500
        scene.say("chat-1", A)
        await until(lambda: context.generation_tokens)
        assert body.held == 495 and not any(medium.source for medium in (*asked, *found))
        scene.say("chat-1", B, finish="stop")
        await task

    play(scenario)


def test_a_long_text_of_a_begun_answer_is_pinned(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        budget = bodies()
        held = body_of(budget, "c")
        assert held.hold(400_000) and held.pin(400_000)
        body = body_of(budget, "c")
        assert body.hold(131_073)
        task, _ = start(scene, replace(request(), context=RequestContext(client="c", body=body)))
        await fails(task, "overloaded", "bodies_full")
        held.keep(0)

    play(scenario)
