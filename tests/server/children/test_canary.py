"""An engine that the test plays: idle, busy, silent and failing ones are told apart, and nobody's place is taken."""

import asyncio
import itertools
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from model.engine.messages import Abort, EnginePulse, Generate, StepDone
from server.children import canary, supervisor
from server.children.canary import Canary
from server.children.liveness import UNANSWERED
from server.http.health import readiness
from tests.server.doubles import STATS, Scene, until
from tests.server.scenario import A, Play, generate

EVERY, DEADLINE = 0.05, 0.2  # seconds of the clock


class ClockDouble:
    """Goes on only where the test says so, however busy the machine is."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic

    async def passes(self, true: Callable[[], Any] = lambda: True, *, does: Callable[[], Any] = lambda: None) -> None:
        """Let time pass until it is so, with this done again and again."""

        def tick() -> Any:
            does()
            self.now += 0.002
            return true()

        await until(tick)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> ClockDouble:
    double = ClockDouble()
    monkeypatch.setattr(canary, "LOOK_SECONDS", 0.005)
    monkeypatch.setattr(canary, "time", double)
    monkeypatch.setattr(supervisor, "time", double)
    return double


@asynccontextmanager
async def watched(scene: Scene) -> Any:
    """A canary that runs; what it told comes out as a list."""
    told: list[str] = []
    metrics: Any = SimpleNamespace(canary=told.append)
    task = asyncio.create_task(Canary(scene.engine, EVERY, DEADLINE, metrics).run())
    try:
        yield told
    finally:
        task.cancel()
        await asyncio.wait({task})
        for name in list(scene.engine._inside):
            scene.finished(name, "abort")


def asked(scene: Scene) -> list[Generate]:
    """What the engine was asked by canaries."""
    said = scene.to_engine()
    return [one for one in said if isinstance(one, Generate) and one.request_id.startswith("canary")]


async def four_deadlines(clock: ClockDouble, does: Callable[[], Any] = lambda: None) -> None:
    end = clock.now + 4 * DEADLINE
    await clock.passes(lambda: clock.now > end, does=does)


def test_an_idle_engine_is_asked_and_answers(play: Play, clock: ClockDouble) -> None:
    async def scenario(scene: Scene) -> None:
        async with watched(scene) as told:
            for n in (1, 2):
                await clock.passes(lambda n=n: len(asked(scene)) == n)  # type: ignore[misc]
                request = asked(scene)[-1]
                assert request.sampling.max_tokens == 1 and len(request.prepared.input_ids) == 1
                scene.say(request.request_id, A, finish="length")
                await clock.passes(lambda n=n: told == ["answered"] * n)  # type: ignore[misc]
        assert scene.engine.liveness.unanswered == 0 and readiness(scene.service)[0]["status"] == "ready"

    play(scenario)


def test_where_tokens_come_nobody_asks(play: Play, clock: ClockDouble) -> None:
    async def scenario(scene: Scene) -> None:
        stream = await scene.engine.submit(generate("chat-1"))
        async with watched(scene):
            await four_deadlines(clock, lambda: scene.say("chat-1", A))
            assert asked(scene) == []
        scene.engine.leave(stream)

    play(scenario)


def test_an_engine_that_does_nothing_is_not_ready_and_then_hung(play: Play, clock: ClockDouble) -> None:
    async def scenario(scene: Scene) -> None:
        scene.engine.on_message(EnginePulse(step_seconds=0.0, step_tokens=0, step_patches=0))
        async with watched(scene) as told:
            await clock.passes(lambda: told == ["late"])
            state, error = readiness(scene.service)
            assert state["status"] == "engine_stuck" and error is not None and error.kind == "unavailable"
            assert scene.engine.liveness.overdue(0.0) is None
            await clock.passes(lambda: len(told) == UNANSWERED)
            assert "3 requests for one token" in str(scene.engine.liveness.overdue(0.0))
            aborts = [said.request_id for said in scene.to_engine() if isinstance(said, Abort)]
            assert aborts[:2] == ["canary-1", "canary-2"], "what came too late is given up"
            scene.kill_engine()
            scene.start_engine()
            assert readiness(scene.service)[1] is None, "that was another engine"

    play(scenario)


def test_one_that_recovers_is_ready_again(play: Play, clock: ClockDouble) -> None:
    async def scenario(scene: Scene) -> None:
        async with watched(scene) as told:
            await clock.passes(lambda: told == ["late"])
            await clock.passes(lambda: len(asked(scene)) == 2)
            scene.say("canary-2", A, finish="length")
            await clock.passes(lambda: told == ["late", "answered"])
            assert readiness(scene.service)[1] is None

    play(scenario)


def in_a_step(scene: Scene, seconds: float) -> None:
    scene.engine.on_message(EnginePulse(step_seconds=seconds, step_tokens=9, step_patches=0))


def test_an_engine_that_works_is_busy_and_not_late(play: Play, clock: ClockDouble) -> None:
    """One long step, and prompts in many chunks: neither gives tokens."""

    async def scenario(scene: Scene) -> None:
        streams = [await scene.engine.submit(generate(name)) for name in ("chat-1", "chat-2")]
        chunk = StepDone(tokens=(), stats=STATS, seconds={"prefill": 0.1}, n_tokens=512)
        seconds = itertools.count(1)
        async with watched(scene) as told:
            await four_deadlines(clock, lambda: in_a_step(scene, float(next(seconds))))
            await four_deadlines(clock, lambda: scene.engine.on_message(chunk))
            assert told == [] and len(asked(scene)) == 1, "it waits, beside two who have every place"
            state, error = readiness(scene.service)
            assert state["status"] == "busy" and error is None
        for stream in streams:
            scene.engine.leave(stream)

    play(scenario)


def test_an_engine_that_fails_every_request_is_not_ready(play: Play, clock: ClockDouble) -> None:
    async def scenario(scene: Scene) -> None:
        async with watched(scene) as told:
            await clock.passes(lambda: len(asked(scene)) == 1)
            scene.finished("canary-1", "failed", message="the device is lost", code="internal")
            await clock.passes(lambda: told == ["failed"])
            assert readiness(scene.service)[0]["status"] == "engine_stuck"

    play(scenario)


def test_the_engines_death_is_no_verdict(play: Play, clock: ClockDouble) -> None:
    async def scenario(scene: Scene) -> None:
        async with watched(scene) as told:
            await clock.passes(lambda: len(asked(scene)) == 1)
            scene.kill_engine()
            await four_deadlines(clock)
            assert told == [] and scene.engine.liveness.unanswered == 0, "a dead engine is not asked"

    play(scenario)
