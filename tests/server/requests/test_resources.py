"""Whatever a request has out, its release tells everybody, and its memory is lent again when all have let go."""

import asyncio

import pytest

from server.request_context import RequestContext
from server.requests.admission import AdmittedPrompt
from server.requests.refusal import Refusal
from server.requests.segments import RequestResources
from tests.server.doubles import Scene, chat_of, prepared, until
from tests.server.scenario import Play, generate
from tokenization.messages import Cancel, Measured, Prepare, PrepareFailed


def resources_of(scene: Scene) -> RequestResources:
    found = RequestResources("chat-1", scene.workers, scene.engine, scene.segments, scene.service.admission)
    found.place = AdmittedPrompt(RequestContext(), "first")
    return found


def measured(*nbytes: int) -> Measured:
    n = len(nbytes)
    return Measured(request_id="chat-1", nbytes=nbytes, params=("inputs[0]",) * n, n_tokens=(4,) * n)


def test_memory_is_free_when_worker_and_engine_have_let_go(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        resources = resources_of(scene)
        await resources.job(Prepare(request_id="chat-1", chat=chat_of("image")), "")
        (name,) = await resources.lease(measured(100))
        resources.stream = await scene.engine.submit(generate("chat-1"))
        resources.release()
        await until(lambda: Cancel(request_id="chat-1") in scene.to_worker())
        assert (await scene.stats()).leases == 1 and not (scene.owner.root / name).exists()
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))
        await asyncio.sleep(0.01)
        assert (await scene.stats()).leases == 1, "the engine may still read it"
        scene.finished("chat-1", "abort")
        await scene.idle()
        assert (await scene.stats()).leases == 0

    play(scenario)


def test_what_is_measured_again_is_leased_again(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        resources = resources_of(scene)
        first = await resources.lease(measured(600_000))
        second = await resources.lease(measured(600_000))
        assert first != second and (await scene.stats()).leases == 1
        assert await resources.lease(measured()) == ()
        with pytest.raises(Refusal) as caught:
            await resources.lease(measured(1 << 21))
        assert caught.value.code == "media_too_large"
        resources.release()

    play(scenario)


def test_the_largest_segment_is_named_of_those_that_would_be_leased(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = Measured(
            request_id="chat-1", nbytes=(3, 9, 1 << 21, 1 << 22), params=("a", "b", "c", "d"), n_tokens=(4,) * 4,
            keys=(b"a", b"b", b"c", b"d"),
        )  # fmt: skip
        with pytest.raises(Refusal) as caught:
            await resources_of(scene).lease(asked, {b"d"})
        refused = caught.value
        assert (refused.kind, refused.param, refused.code) == ("invalid_request", "c", "media_too_large")

    play(scenario)


def test_a_job_that_ended_is_told_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        resources = resources_of(scene)
        await resources.job(Prepare(request_id="chat-1", chat=chat_of("image")), "")
        scene.workers.slots[0].on_message(prepared("chat-1"))
        resources.release()
        await scene.idle()
        assert not any(isinstance(said, Cancel) for said in scene.to_worker())

    play(scenario)
