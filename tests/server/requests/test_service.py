"""One function owns a request: what it tells worker and engine, and what the client is told."""

import asyncio
from dataclasses import replace

import pytest

from model.engine.messages import Abort, MediaRead, StepDone, Token, TokenEvent
from server.requests.refusal import Refusal
from tests.server.doubles import STATS, Scene, prepared, until
from tests.server.scenario import A, B, C, Play, fails, generating, leased, request, start, text_of
from tokenization.chat.grammar import Grammar
from tokenization.messages import Cancel, Measured, Prepare, PrepareFailed
from tokenization.text.bpe import BPETokenizer


def test_a_text_is_answered(play: Play, tokenizer: BPETokenizer) -> None:
    async def scenario(scene: Scene) -> None:
        task, sink = start(scene, request(max_tokens=7, seed=3))
        told = await generating(scene)
        assert (told.sampling.max_tokens, told.sampling.seed, told.sampling.stop_token_ids) == (7, 3, (1000,))
        scene.say("chat-1", A, B)
        scene.say("chat-1", C, finish="length")
        await task
        assert sink.prepared is told.prepared and sink.text == text_of(tokenizer, A, B, C)
        assert [delta.finish for delta in sink.deltas][-1] == "length"
        assert not any(isinstance(said, Abort) for said in scene.to_engine())

    play(scenario)


def test_the_first_token_counts_once_it_is_handed_over(play: Play) -> None:
    """A connection that takes no byte yet has no token yet."""

    async def scenario(scene: Scene) -> None:
        writable = asyncio.Event()

        async def emit(*_: object) -> None:
            await writable.wait()

        def counted() -> bool:
            return b'time_to_first_token_seconds_count{model_name="tiny"} 1.0' in scene.metrics.render()

        task = asyncio.create_task(scene.service.run([request()], emit))
        await generating(scene)
        scene.say("chat-1", A, finish="stop")
        await until(lambda: b'generation_tokens_total{model_name="tiny"} 1.0' in scene.metrics.render())
        assert not counted()
        writable.set()
        await task
        assert counted()

    play(scenario)


def test_a_defect_of_ours_is_counted_as_an_error(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        async def emit(*_: object) -> None:
            raise ZeroDivisionError

        asked = request()
        task = asyncio.create_task(scene.service.run([asked], emit))
        await generating(scene)
        scene.say("chat-1", A)
        with pytest.raises(ZeroDivisionError):
            await task
        assert asked.context.timings[0].reason == "error"
        scene.finished("chat-1", "abort")

    play(scenario)


def test_max_tokens_is_what_is_left(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        for wish in (None, 10**6):
            task, _ = start(scene, request(name=f"chat-{wish}", max_tokens=wish))
            told = await generating(scene, f"chat-{wish}", n=400)
            assert told.sampling.max_tokens == 600, "1000 by the engine's cache, 2000 by the model"
            scene.say(f"chat-{wish}", A, finish="stop")
            await task

    play(scenario)


def test_a_prompt_that_leaves_no_room_is_a_400(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request())
        await until(lambda: scene.workers.slots[0].job is not None)
        scene.workers.slots[0].on_message(prepared("chat-1", 1000))
        await fails(task, "invalid_request", "context_length_exceeded", "inputs")
        assert scene.to_engine() == []

    play(scenario)


def test_media_are_leased_given_back_and_released(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image", "text", "image")
        task, _ = start(scene, asked)
        names = await leased(scene, asked, (100, 5000))
        assert len(names) == 2 and (await scene.stats()).leases == 2
        await generating(scene, media=2)
        scene.engine.on_message(MediaRead(request_id="chat-1", names=names[:1]))
        while (await scene.stats()).leases == 2:
            await asyncio.sleep(0.001)
        assert (await scene.stats()).leases == 1
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_what_is_wrong_before_anything_is_opened_reaches_no_worker(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("text", "video")
        form = Grammar(kind="regex", source="a", param="structured_outputs.regex")
        for one in (asked, replace(asked, grammar=form)):
            task, _ = start(scene, one)
            await until(lambda task=task: task.done() or scene.to_worker())  # type: ignore[misc]
            assert scene.to_worker() == []
            await fails(task, "invalid_request", "unsupported_modality", "inputs[1]")

    play(scenario)


def test_a_workers_refusal_is_the_clients_error(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        for param, code, expected in (
            ("inputs[0].image", None, "inputs[0].image"),
            (None, "context_length_exceeded", "inputs"),
        ):
            task, _ = start(scene, request())
            await until(lambda: scene.workers.slots[0].job is not None)
            failed = PrepareFailed(request_id="chat-1", kind="bad_request", message="no", param=param, code=code)
            scene.workers.slots[0].on_message(failed)
            await fails(task, "invalid_request", code, expected)
        task, _ = start(scene, request())
        await until(lambda: scene.workers.slots[0].job is not None)
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="internal", message="/etc/x"))
        with pytest.raises(Refusal, match="could not be prepared") as caught:
            await task
        assert caught.value.kind == "internal" and "/etc" not in str(caught.value)

    play(scenario)


def test_what_does_not_fit_now_is_a_429_and_what_never_fits_a_400(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, second = request("image"), request("image", "image", name="chat-2")
        holder, _ = start(scene, first)
        await leased(scene, first, (700_000,))
        await generating(scene)
        task, _ = start(scene, second)
        await until(lambda: isinstance(scene.to_worker()[-1], Prepare))
        params = ("inputs[0]", "inputs[1]")
        scene.workers.slots[0].on_message(
            Measured(request_id="chat-2", nbytes=(1, 500_000), params=params, n_tokens=(4, 4))
        )
        with pytest.raises(Refusal) as caught:
            await task
        assert caught.value.kind == "overloaded" and (caught.value.retry_after or 0) >= 1
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-2"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-2", kind="cancelled", message=""))
        task, _ = start(scene, second)
        await until(lambda: isinstance(scene.to_worker()[-1], Prepare))
        scene.workers.slots[0].on_message(
            Measured(request_id="chat-2", nbytes=(1, 1 << 20), params=params, n_tokens=(4, 4))
        )
        await fails(task, "invalid_request", "media_too_large", "inputs[1]")
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-2"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-2", kind="cancelled", message=""))
        scene.say("chat-1", A, finish="stop")
        await holder

    play(scenario)


def test_several_answers_grow_side_by_side_and_end_one_by_one(play: Play, tokenizer: BPETokenizer) -> None:
    """One ends by the engine, one by a stop string, which the engine is told for that answer alone."""

    async def scenario(scene: Scene) -> None:
        task, sink = start(scene, request(n=3, stop=(text_of(tokenizer, B),), max_tokens=9))
        told = await generating(scene)
        assert told.sampling.n == 3

        async def say(*events: tuple[int, int, bool]) -> None:
            tokens = tuple(
                TokenEvent(request_id="chat-1", index=i, token=Token(id=t), finish="length" if ends else None)
                for i, t, ends in events
            )
            n = len(sink.deltas)
            scene.engine.on_message(StepDone(tokens=tokens, stats=STATS, seconds={}))
            await until(lambda: len(sink.deltas) > n)

        await say((0, A, False), (1, A, False), (2, A, False))
        await say((0, C, False), (1, B, False), (2, C, True))
        await until(lambda: scene.to_engine()[-1] == Abort(request_id="chat-1", index=1))
        assert not task.done()
        await say((0, A, True), (1, A, False))  # the engine had drawn one more
        await task
        texts = ["".join(d.text for d in sink.deltas if d.index == i) for i in range(3)]
        assert texts == [text_of(tokenizer, A, C, A), text_of(tokenizer, A), text_of(tokenizer, A, C)]
        assert sorted((d.index, d.finish) for d in sink.deltas if d.finish) == [
            (0, "length"),
            (1, "stop"),
            (2, "length"),
        ]
        assert sum(len(d.tokens) for d in sink.deltas) == 7
        scene.finished("chat-1", "done")

    play(scenario)


def test_what_the_model_or_the_server_does_not_take_is_named(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        for wishes, name in (
            ({"n": 9}, "n"),
            ({"logit_bias": {"400": 1.0}}, "logit_bias"),
            ({"stop_token_ids": [3, 400]}, "stop_token_ids"),
            ({"allowed_token_ids": [3, 400]}, "allowed_token_ids"),
        ):
            task, _ = start(scene, request(**wishes))
            await fails(task, "invalid_request", None, f"parameters.{name}")
            said = str(task.exception())
            assert name == "n" or said == f"parameters.{name}: this model has 400 token ids from 0 on, not 400"
        assert scene.to_worker() == []

    play(scenario)


def test_what_the_engine_can_never_hold_is_refused_before_a_lease(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request("image", "image"))
        await until(lambda: scene.workers.slots[0].job is not None)
        params = ("inputs[0].image", "inputs[1].image")
        scene.workers.slots[0].on_message(
            Measured(request_id="chat-1", nbytes=(9, 9), params=params, n_tokens=(300, 201))
        )
        await fails(task, "invalid_request", "media_too_large", "inputs[0].image")
        assert (await scene.stats()).segments == 0 and scene.to_engine() == []
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))

    play(scenario)
