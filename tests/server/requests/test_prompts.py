"""Several prompts of one body: answered together, refused together, ended together."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from model.engine.messages import Generate
from server.requests.prompts import run_prompts
from server.requests.refusal import Refusal
from server.requests.request import ChatRequest
from server.requests.sampling import SamplingRequest
from tests.server.doubles import EmitDouble, Scene, prepared, until
from tests.server.scenario import A, B, Play
from tokenization.chat.parts import RawPrompt
from tokenization.messages import Encode, Prepared, PrepareFailed


def prompts(*texts: str, n: int = 1) -> list[ChatRequest]:
    return [
        ChatRequest(id=f"r-{i}", chat=RawPrompt(text=text), chat_param=f"prompt[{i}]", sampling=SamplingRequest(n=n))
        for i, text in enumerate(texts)
    ]


def started(
    scene: Scene, requests: list[ChatRequest], seen: Callable[[Sequence[Prepared]], None] = lambda _: None
) -> "tuple[asyncio.Task[None], EmitDouble]":
    emitted = EmitDouble()
    return asyncio.create_task(run_prompts(scene.service.run, requests, emitted, seen)), emitted


def names_to_engine(scene: Scene) -> set[str]:
    return {said.request_id for said in scene.to_engine() if isinstance(said, Generate)}


def test_answers_of_all_prompts_go_one_way(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        seen: list[int] = []
        task, emitted = started(
            scene, prompts("Hi", "you", n=2), lambda found: seen.extend(len(one.input_ids) for one in found)
        )
        await until(lambda: len(scene.to_worker()) == 1)
        assert scene.to_worker()[0] == Encode(request_id="r-0", text="Hi")
        scene.workers.slots[0].on_message(prepared("r-0", 3))
        await until(lambda: len(scene.to_worker()) == 2)
        await asyncio.sleep(0.01)
        assert not scene.to_engine() and not seen, "the first one waits: the second may still be refused"
        scene.workers.slots[0].on_message(prepared("r-1", 4))
        await until(lambda: names_to_engine(scene) == {"r-0", "r-1"})
        assert seen == [3, 4] and scene.service.admission.n_active == 2
        scene.say("r-1", B)
        await until(lambda: emitted.deltas)
        assert emitted.deltas[0].index == 2
        assert emitted.prepared is not None and len(emitted.prepared.input_ids) == 4, "that of its own prompt"
        task.cancel()
        await asyncio.wait({task})
        assert scene.service.admission.n_active == 0

    play(scenario)


def test_ids_need_no_worker(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        request = ChatRequest(id="r", chat=RawPrompt(ids=(5, 6)), chat_param="prompt", sampling=SamplingRequest())
        task, emitted = started(scene, [request])
        await until(lambda: names_to_engine(scene) == {"r"})
        assert scene.to_worker() == []
        told = scene.to_engine()[-1].prepared
        assert told.input_ids.tolist() == [5, 6] and told.positions.tolist() == [[0, 1]] * 3
        scene.say("r", A, finish="length")
        await task
        assert emitted.deltas[-1].finish == "length"

    play(scenario)


def test_one_refusal_ends_all(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, emitted = started(scene, prompts("Hi", "you"))
        await until(lambda: len(scene.to_worker()) == 1)
        scene.workers.slots[0].on_message(prepared("r-0", 3))
        await until(lambda: len(scene.to_worker()) == 2)
        failed = PrepareFailed(request_id="r-1", kind="bad_request", message="too long")
        scene.workers.slots[0].on_message(failed)
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.param, caught.value.message) == ("prompt[1]", "too long")
        assert not emitted.deltas and not scene.to_engine() and scene.service.admission.n_active == 0

    play(scenario)


def test_a_drain_that_runs_out_of_time_is_said(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = started(scene, prompts("Hi", "you"))
        await until(lambda: scene.service.admission.n_active == 2)
        await scene.service.admission.drain(0.01)
        with pytest.raises(Refusal) as caught:
            await task
        assert caught.value.code == "stopping"

    play(scenario)
