"""At whatever point a request ends, the messages are right and no memory stays leased."""

import asyncio
from dataclasses import replace

import pytest

from model.engine.messages import Abort
from server.requests.answer import Delta
from server.requests.refusal import Refusal
from tests.server.doubles import Scene, prepared, until
from tests.server.scenario import A, B, C, Play, fails, generating, leased, request, start, text_of
from tests.tables import each_of
from tokenization.chat.grammar import Grammar
from tokenization.messages import Cancel, Compile, Prepared, PrepareFailed, WorkerPulse
from tokenization.text.bpe import BPETokenizer


def test_a_dead_worker_costs_one_retry(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        before = await leased(scene, asked)
        scene.kill_worker()
        scene.start_worker()
        after = await leased(scene, asked)
        assert before != after and (await scene.stats()).leases == 1
        await generating(scene, media=1)
        scene.say("chat-1", A, finish="stop")
        await task

    play(scenario)


def test_a_defect_of_ours_is_counted_as_an_error(play: Play) -> None:
    """Whoever writes the answer raises: nobody's refusal, and nobody has left."""

    async def scenario(scene: Scene) -> None:
        async def emit(of: Prepared, delta: Delta) -> None:
            raise RuntimeError("the writer failed")

        asked = request()
        task = asyncio.create_task(scene.service.run([asked], emit))
        await generating(scene)
        scene.say("chat-1", A)
        with pytest.raises(RuntimeError):
            await task
        assert asked.context.timings[0].reason == "error"

    play(scenario)


def test_two_dead_workers_are_a_500(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        for _ in range(2):
            await leased(scene, asked)
            scene.kill_worker()
            scene.start_worker()
        await fails(task, "internal", "worker_died")

    play(scenario)


def test_a_chat_that_was_killed_for_its_time_is_not_tried_again(play: Play) -> None:
    """It is refused as the client's to change, and the second worker is left alone."""

    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        await leased(scene, asked)
        scene.workers.slots[0].on_message(WorkerPulse(request_id="chat-1", busy_seconds=70.1))
        assert scene.workers.slots[0].liveness.overdue(0.0) is not None
        scene.kill_worker()
        await fails(task, "invalid_request", "took_too_long", "inputs[0]")
        scene.start_worker()
        assert scene.to_worker(0) == scene.to_worker(1) == []

    play(scenario, workers=2)


def test_who_waits_for_the_compiler_has_a_place(play: Play) -> None:
    """So that such requests are no more than --max-requests, and a drain waits for them."""

    async def scenario(scene: Scene) -> None:
        grammar = Grammar(kind="regex", source="a", param="structured_outputs.regex")
        task, _ = start(scene, replace(request(), grammar=grammar))
        await until(lambda: any(isinstance(one, Compile) for one in scene.to_worker()))
        assert scene.service.admission.n_active == 1
        answer = PrepareFailed(request_id="chat-1", kind="bad_request", message="no", code="structured_output")
        scene.workers.slots[0].on_message(answer)
        await fails(task, "invalid_request", "structured_output", "structured_outputs.regex")
        assert scene.service.admission.n_active == 0

    play(scenario)


def test_a_client_that_leaves_while_it_is_measured(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request("image"))
        await until(lambda: scene.to_worker())
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: scene.to_worker()[-1] == Cancel(request_id="chat-1"))
        assert scene.workers.slots[0].state != "free"
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="cancelled", message=""))
        assert [slot.state for slot in scene.workers.slots] == ["free"]
        assert (await scene.stats()).segments == 0

    play(scenario)


def test_a_client_that_leaves_while_it_is_written(play: Play) -> None:
    """The names lead nowhere at once; the memory is lent again only when the writer has let go."""

    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        names = await leased(scene, asked)
        task.cancel()
        await asyncio.wait({task})
        stats = await scene.stats()
        assert stats.leases == 1 and stats.path_files == 0 and not (scene.owner.root / names[0]).exists()
        scene.workers.slots[0].on_message(PrepareFailed(request_id="chat-1", kind="internal", message="gone"))
        await scene.segments.idle()
        assert (await scene.stats()).leases == 0

    play(scenario)


def test_a_client_that_leaves_while_it_waits_for_a_worker_or_a_place(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        first, _ = start(scene, request())
        await until(lambda: scene.workers.slots[0].job is not None)
        second, _ = start(scene, request(name="chat-2"))
        await until(lambda: scene.workers.n_waiting == 1)
        second.cancel()
        await asyncio.wait({second})
        assert scene.workers.n_waiting == 0
        await generating(scene)
        third, _ = start(scene, request(name="chat-3"))
        await until(lambda: scene.workers.slots[0].job is not None)
        scene.workers.slots[0].on_message(prepared("chat-3"))
        await until(lambda: scene.engine.n_waiting == 1)
        third.cancel()
        await asyncio.wait({third})
        assert scene.engine.n_waiting == 0
        scene.say("chat-1", A, finish="stop")
        await first
        assert [said.request_id for said in scene.to_engine()] == ["chat-1"]

    play(scenario, seqs=1)


def test_a_client_that_leaves_the_engine_frees_memory_when_the_engine_lets_go(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        asked = request("image")
        task, _ = start(scene, asked)
        await leased(scene, asked)
        await generating(scene, media=1)
        task.cancel()
        await asyncio.wait({task})
        await until(lambda: scene.to_engine()[-1] == Abort(request_id="chat-1"))
        assert (await scene.stats()).leases == 1 and len(scene.engine._inside) == 1
        scene.finished("chat-1", "abort")
        assert not scene.engine._inside

    play(scenario)


def test_a_stop_string_ends_the_answer_and_aborts_the_rest(play: Play, tokenizer: BPETokenizer) -> None:
    async def scenario(scene: Scene) -> None:
        task, sink = start(scene, request(stop=(text_of(tokenizer, B),)))
        await generating(scene)
        scene.say("chat-1", A, B, C)
        await task
        assert sink.text == text_of(tokenizer, A) and sink.deltas[-1].finish == "stop"
        assert sum(len(delta.tokens) for delta in sink.deltas) == 2
        await until(lambda: scene.to_engine()[-1] == Abort(request_id="chat-1"))
        scene.finished("chat-1", "abort")

    play(scenario)


def test_an_engines_death_ends_those_inside_and_nobody_else(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        inside, sink = start(scene, request())
        await generating(scene)
        scene.say("chat-1", A)
        waiting, _ = start(scene, request("image", name="chat-2"))
        await leased(scene, request("image", name="chat-2"))
        scene.workers.slots[0].on_message(prepared("chat-2", media=1))
        await until(lambda: scene.engine.n_waiting == 1)
        scene.kill_engine()
        await fails(inside, "unavailable", "engine_died")
        assert "while it answered this request" in str(inside.exception()) and len(sink.deltas) == 1
        preparing, _ = start(scene, request(name="chat-3"))
        await until(lambda: scene.workers.slots[0].job is not None)
        assert not waiting.done() and (await scene.stats()).leases == 1
        scene.start_engine()
        for name, task in (("chat-2", waiting), ("chat-3", preparing)):
            if name == "chat-3":
                scene.workers.slots[0].on_message(prepared(name))
            await until(lambda name=name: name in [said.request_id for said in scene.to_engine()])  # type: ignore[misc]
            scene.say(name, A, finish="stop")
            await task

    play(scenario, seqs=1)


def test_a_request_without_a_token_is_not_said_to_be_answered(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        inside, sink = start(scene, request())
        await generating(scene)
        scene.kill_engine()
        await fails(inside, "unavailable", "engine_died")
        assert "before the first token of this request" in str(inside.exception()) and not sink.deltas

    play(scenario)


def test_nobody_waits_for_an_engine_that_never_comes(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        scene.kill_engine()
        task, _ = start(scene, request())
        await until(lambda: scene.workers.slots[0].job is not None)
        scene.workers.slots[0].on_message(prepared("chat-1"))
        await until(lambda: scene.engine.n_waiting == 1)
        for _ in range(3):
            scene.start_engine(ready=False)
            scene.kill_engine()
        await fails(task, "unavailable", "engine_died")
        refused, _ = start(scene, request())
        await fails(refused, "unavailable", "broken")

    play(scenario)


@each_of(
    ("code", "shown"),
    [("media_unavailable", ("unavailable", "media_unavailable")), ("", ("internal", "internal"))],
)
def test_what_the_engine_cannot_do_fails_one_request(play: Play, code: str, shown: tuple[str, str]) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request())
        await generating(scene)
        scene.finished("chat-1", "failed", message="segment 0123456789a is gone", code=code)
        with pytest.raises(Refusal) as caught:
            await task
        assert (caught.value.kind, caught.value.code) == shown
        assert "0123456789a" not in caught.value.message

    play(scenario)


def test_rules_that_leave_no_token_are_the_clients(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request())
        await generating(scene)
        scene.finished("chat-1", "failed", message="the request allows no token", code="nothing_allowed")
        await fails(task, "invalid_request", None, "parameters.allowed_token_ids")

    play(scenario)


def test_bad_words_reach_the_engine_in_both_spellings(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task, _ = start(scene, request(bad_words=["cat"], allowed_token_ids=[3, 3, 4]))
        told = (await generating(scene)).sampling
        encode = scene.service.card.tokenizer.encode
        assert told.bad_words == (tuple(encode("cat")), tuple(encode(" cat")))
        assert told.allowed_token_ids == (3, 4)
        task.cancel()
        scene.finished("chat-1", "abort")

    play(scenario)


def test_counting_leases_nothing(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        task = asyncio.create_task(scene.service.count(request("image")))
        await until(lambda: scene.to_worker() != [])
        assert scene.to_worker()[0].count_only
        scene.workers.slots[0].on_message(prepared("chat-1", 7, media=1))
        assert len((await task).input_ids) == 7
        assert scene.to_engine() == [] and (await scene.stats()).segments == 0

    play(scenario)
