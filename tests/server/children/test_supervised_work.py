"""A child whose interpreter's lock is held is told from one that stands still, and one that is well may be replaced."""

import asyncio

import pytest

from tests.server.children.supervised import BEGIN, GOOD, PULSE, Supervised, eventually, keep
from tests.server.doubles import Scene, chat_of, prepared
from tests.server.scenario import Play, begun
from tokenization.messages import WorkerPulse

PULSE_SECONDS = 0.6
# A double of a worker whose job is one long call into C: composing runs of marks, whose time grows with their square.
ONE_CALL_THAT_WORKS = """
from unicodedata import normalize
def seconds(n):
    begun = time.thread_time(); normalize("NFC", "\\u0315\\u0300" * n); return time.thread_time() - begun
n = 2000
while (one := seconds(n)) < 0.1:
    n *= 2
silent = seconds(int(n * (%g / one) ** 0.5))
channel.send(WorkerPulse(request_id="through", busy_seconds=silent))
threading.Event().wait()
"""
# A double of a worker that waits for itself with the lock in its hand: PyDLL does not let go of it.
ONE_CALL_THAT_WAITS = """
import ctypes
ctypes.PyDLL(None).pause()
"""
READY = "channel.send(WorkerReady())\n"


@pytest.mark.process
def test_one_that_holds_the_lock_in_one_call_and_works_is_left_alone() -> None:
    """It is silent for longer than it may be, and says so itself afterwards."""
    heard: list[WorkerPulse] = []

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        child.on = lambda message: heard.append(message) if isinstance(message, WorkerPulse) else None
        await asyncio.wait_for(eventually(lambda: any(pulse.request_id for pulse in heard)), 60)
        assert child.told == ["started", "ready"]

    keep(BEGIN + READY + PULSE + ONE_CALL_THAT_WORKS % (2 * PULSE_SECONDS), scenario, pulse_seconds=PULSE_SECONDS)
    (through,) = (pulse for pulse in heard if pulse.request_id == "through")
    assert through.busy_seconds > 1.3 * PULSE_SECONDS, "else this shows nothing"


@pytest.mark.process
def test_one_that_holds_the_lock_and_waits_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        await asyncio.wait_for(eventually(lambda: "lost" in child.told), 60)

    script = BEGIN + READY + PULSE + ONE_CALL_THAT_WAITS
    assert keep(script, scenario, pulse_seconds=PULSE_SECONDS)[:4] == ["started", "ready", "down", "lost"]
    assert "hangs (silent for" in caplog.text


@pytest.mark.process
def test_the_time_of_its_job_bounds_one_that_holds_the_lock(caplog: pytest.LogCaptureFixture) -> None:
    """The supervisor hands the silence on: whoever knows the job adds it to what the last pulse told."""
    silences: list[float] = []

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        def overdue(silent: float) -> str | None:
            silences.append(silent)
            return "as long as it may on one job" if silent > 1.5 * PULSE_SECONDS else None

        child.liveness.overdue = overdue  # type: ignore[method-assign]
        await asyncio.wait_for(eventually(lambda: "lost" in child.told), 60)
        assert child.counter.counted[0] == "hang"

    script = BEGIN + READY + PULSE + ONE_CALL_THAT_WORKS % (4 * PULSE_SECONDS)
    keep(script, scenario, pulse_seconds=PULSE_SECONDS)
    assert silences[0] < PULSE_SECONDS and "hangs (as long as it may on one job)" in caplog.text


@pytest.mark.process
def test_one_that_is_well_is_replaced_when_who_works_with_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """It is neither a hang nor a failure: another follows at once, and the log says why."""

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        await asyncio.wait_for(child.ready.wait(), 60)
        child.failures = 1
        child.renewal = "it keeps 300 MiB of earlier jobs"
        child.liveness.kept_bytes = 300 << 20
        await asyncio.wait_for(eventually(lambda: "lost" in child.told), 60)
        child.renewal = None
        await asyncio.wait_for(eventually(lambda: child.told.count("ready") == 2), 60)
        assert child.counter.counted == ["renewal"] and child.failures == 1

    caplog.set_level("INFO", "pixelferry")
    assert keep(GOOD, scenario) == ["started", "ready", "down", "lost", "started", "ready"]
    assert "is replaced: it keeps 300 MiB of earlier jobs" in caplog.text
    assert all(record.levelname == "INFO" for record in caplog.records)


def test_silence_counts_as_time_on_the_job_and_not_on_the_next_one(play: Play) -> None:
    """While one call holds the worker's lock, its last pulse is old."""

    async def scenario(scene: Scene) -> None:
        slot = scene.workers.slots[0]
        await begun(scene, "a", chat_of("text"))
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=50.0))
        assert slot.liveness.overdue(10.0) is None
        assert slot.liveness.overdue(10.1) == "60 s on one job"
        slot.on_message(prepared("a"))
        await begun(scene, "b", chat_of("text"))
        assert slot.liveness.overdue(10.1) is None
        slot.on_message(WorkerPulse(request_id="a", busy_seconds=70.0))  # it was sent before the answer, and read after
        assert slot.liveness.overdue(10.1) is None

    play(scenario)
