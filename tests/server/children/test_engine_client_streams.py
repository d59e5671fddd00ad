"""What the engine says: tokens and ends to the streams inside, media that were read, and what it says of itself."""

import asyncio

import msgspec
import pytest

from model.engine.messages import (
    Abort,
    EnginePulse,
    EngineStats,
    MediaRead,
    PromptScored,
    StepDone,
    Token,
    TokenEvent,
)  # fmt: skip
from server.children.engine_client import EngineDied, Stream
from server.children.liveness import SECONDS_PER_PAIR, SECONDS_PER_PATCH, SECONDS_PER_TOKEN
from tests.server.doubles import STATS, Scene
from tests.server.scenario import A, B, Play, generate
from tests.tables import each_of


def event(name: str, token_id: int = A, *, index: int = 0, last: bool = False) -> TokenEvent:
    return TokenEvent(request_id=name, token=Token(id=token_id), finish="stop" if last else None, index=index)


def test_what_came_before_the_end_is_read_before_it() -> None:
    async def scenario() -> None:
        stream = Stream("a", unfinished={0})
        stream.put(event("a", A))
        stream.put(event("a", B))
        stream.end(EngineDied())
        assert [found.token.id for found in await stream.next()] == [A, B]
        for _ in range(2):
            with pytest.raises(EngineDied):
                await stream.next()

    asyncio.run(scenario())


@each_of("last", [[0, 1], [0], []])
def test_only_who_leaves_before_the_last_answers_end_is_aborted(play: Play, last: list[int]) -> None:
    async def scenario(scene: Scene) -> None:
        stream = await scene.engine.submit(generate("a", n=2))
        tokens = tuple(event("a", index=index, last=True) for index in last)
        scene.engine.on_message(StepDone(tokens=tokens, stats=STATS, seconds={}))
        scene.engine.leave(stream)
        await scene.idle()
        assert (Abort(request_id="a") in scene.to_engine()) == (len(last) < 2)
        assert not stream.ended.is_set() and len(scene.engine._inside) == 1
        scene.finished("a", "abort")
        assert stream.ended.is_set()
        scene.engine.leave(stream)
        await scene.idle()
        assert len(scene.to_engine()) <= 2

    play(scenario)


def test_one_answer_may_be_dropped_alone(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        stream = await scene.engine.submit(generate("a", n=3))
        scene.engine.drop(stream, 2)
        await scene.idle()
        assert scene.to_engine()[1:] == [Abort(request_id="a", index=2)]
        scene.finished("a", "done")

    play(scenario)


# ---- what the engine says of itself


def test_only_who_is_inside_has_media_that_can_be_read(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        stream = await scene.engine.submit(generate("a"))
        reading = asyncio.create_task(stream.next())
        scene.engine.on_message(MediaRead(request_id="b", names=("x",)))
        scene.engine.on_message(StepDone(tokens=(event("b"),), stats=STATS, seconds={}))
        await asyncio.sleep(0)
        assert not reading.done()
        scene.engine.on_message(MediaRead(request_id="a", names=("y", "z")))
        assert not await reading and stream.media_read == ["y", "z"] and not stream.ended.is_set()
        scene.finished("a", "done")

    play(scenario)


def test_a_step_may_take_longer_the_more_it_has_to_do(play: Play) -> None:
    def hangs(scene: Scene, seconds: float, tokens: int = 0, patches: int = 0, pairs: int = 0) -> bool:
        scene.engine.on_message(
            EnginePulse(step_seconds=seconds, step_tokens=tokens, step_patches=patches, step_pairs=pairs)
        )
        return scene.engine.liveness.overdue(0.0) is not None

    async def scenario(scene: Scene) -> None:  # its steps may take 60 s
        assert scene.engine.liveness.overdue(0.0) is None, "it has said nothing yet"
        assert not hangs(scene, 60.0) and hangs(scene, 60.1)
        assert scene.engine.liveness.overdue(0.0) == "60 s in one step"
        more = 60.0 + 100 * SECONDS_PER_TOKEN
        assert not hangs(scene, more, tokens=100) and hangs(scene, more + 0.1, tokens=100)
        most = more + 1000 * SECONDS_PER_PATCH
        assert not hangs(scene, most, 100, 1000) and hangs(scene, most + 0.1, 100, 1000)
        assert more > 60 and most > more
        longest = most + 10**8 * SECONDS_PER_PAIR
        assert not hangs(scene, longest, 100, 1000, 10**8) and hangs(scene, longest + 0.1, 100, 1000, 10**8)
        assert 60 + 65_536 * SECONDS_PER_PATCH + 65_536**2 * SECONDS_PER_PAIR > 2 * 32 * 479, "12.8 MP on two cores"
        scene.kill_engine()
        scene.start_engine()
        assert scene.engine.liveness.overdue(0.0) is None, "it was another process that hung"

    play(scenario)


def test_an_idle_engine_has_nothing_running_and_keeps_its_totals(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        busy = EngineStats(
            running=2, waiting=1, kv_blocks_used=3, kv_blocks_total=10, preemptions=4, embedding_bytes=5
        )  # fmt: skip
        for name in ("a", "b"):
            await scene.engine.submit(generate(name))
        scene.engine.on_message(StepDone(tokens=(), stats=busy, seconds={}))
        scene.finished("a", "done")
        assert scene.engine.stats == busy
        scene.finished("b", "done")
        idle = {"running": 0, "waiting": 0, "kv_blocks_used": 0, "embedding_bytes": 0}
        assert scene.engine.stats == msgspec.structs.replace(busy, **idle)
        scene.kill_engine()
        assert scene.engine.stats is None

    play(scenario)


def test_what_a_prompt_got_is_kept_for_its_request(play: Play) -> None:
    async def scenario(scene: Scene) -> None:
        stream = await scene.engine.submit(generate("a"))
        for name, token_id in (("a", A), ("gone", A), ("a", B)):
            scene.engine.on_message(PromptScored(request_id=name, tokens=(Token(id=token_id, logprob=-1.0),)))
        assert [token.id for token in stream.prompt] == [A, B]
        scene.finished("a", "done")

    play(scenario)


def test_encoders_count_for_the_requests_whose_media_they_ran_over(play: Play) -> None:
    """A prompt with many media is encoded in several steps; one whose media were kept is encoded in none."""

    async def scenario(scene: Scene) -> None:
        streams = [await scene.engine.submit(generate(name)) for name in ("a", "b")]
        for taken, encoded in ((0.5, ("a", "gone")), (0.25, ("a",)), (None, ())):
            seconds = {"prefill": 3.0} if taken is None else {"prefill": 3.0, "encode": taken}
            scene.engine.on_message(StepDone(tokens=(), stats=STATS, seconds=seconds, encoded=encoded))
        assert [stream.encode_seconds for stream in streams] == [0.75, 0.0]
        for name in ("a", "b"):
            scene.finished(name, "done")

    play(scenario)


def test_when_a_requests_first_step_began_and_what_was_in_the_cache(play: Play) -> None:
    """Not its later ones, and not that of the request beside it."""

    async def scenario(scene: Scene) -> None:
        streams = [await scene.engine.submit(generate(name)) for name in ("a", "b")]
        for started, begun in ((5.0, {"a": 3, "gone": 4}), (6.0, {"a": 5, "b": 0})):
            scene.engine.on_message(StepDone(tokens=(), stats=STATS, seconds={}, started=started, begun=begun))
        assert [(stream.scheduled, stream.n_cached) for stream in streams] == [(5.0, 3), (6.0, 0)]
        for name in ("a", "b"):
            scene.finished(name, "done")

    play(scenario)
