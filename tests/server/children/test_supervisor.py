"""Real child processes, a few lines each, under a supervisor: death, hanging, garbage and defects are told apart."""

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs.logs import LogConfig
from configs.serve import EngineConfig, MediaConfig
from model.engine.messages import LargestItem, StartEngine
from server.children import stacks, supervisor
from server.children.engine_client import EngineClient
from server.children.processes import Ownership
from server.children.supervisor import StartFailed, backoff
from server.children.workers import WorkerPool
from shm import Owner
from tests.server.children.supervised import BEGIN, GOOD, Supervised, eventually, keep
from tests.server.doubles import Scene, config_of, until
from tests.server.scenario import Play, generate
from tests.tables import each_of
from tokenization.messages import StartWorker, WorkerPulse, WorkerReady

STUCK = """
import sys, threading
from shm import Channel, Pulse
Pulse(Channel(int(sys.argv[1]), object)).further()
threading.Event().wait()
"""


@pytest.mark.process
def test_a_death_is_seen_at_once_and_another_is_started() -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        await asyncio.wait_for(child.ready.wait(), 60)
        os.kill(child.children[0].pid, signal.SIGKILL)
        await asyncio.wait_for(eventually(lambda: "down" in child.told), 30)  # and not by its silence
        await asyncio.wait_for(eventually(lambda: child.told.count("ready") == 2), 60)

    assert keep(GOOD, scenario) == ["started", "ready", "down", "lost", "started", "ready"]


@pytest.mark.process
def test_one_that_stops_is_killed_and_replaced() -> None:
    """One that pulses is left alone. One that stops when it is ready, or while it loads, is not."""
    pulses: list[Any] = []

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        child.on = pulses.append
        await asyncio.wait_for(child.ready.wait(), 60)
        await asyncio.wait_for(eventually(lambda: len(pulses) > 45), 60)
        assert child.told == ["started", "ready"]
        os.kill(child.children[0].pid, signal.SIGSTOP)
        await asyncio.wait_for(eventually(lambda: len(child.children) == 2), 60)
        os.kill(child.children[1].pid, signal.SIGSTOP)
        await asyncio.wait_for(eventually(lambda: child.told.count("ready") == 2), 60)
        assert [one.exited.result() for one in child.children[:2]] == [-signal.SIGKILL] * 2

    expected = ["started", "ready", "down", "lost", "started", "down", "lost", "started", "ready"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "MOST_SECONDS", 0.5)  # in which a stopped process says where it is
        assert keep(GOOD, scenario, pulse_seconds=2.0) == expected


@pytest.mark.process
def test_one_that_pulses_and_makes_no_progress_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        await asyncio.wait_for(child.ready.wait(), 60)
        child.liveness.why = "9 s in one step"
        await asyncio.wait_for(eventually(lambda: "lost" in child.told), 60)
        child.liveness.why = None
        assert child.counter.counted[0] == "hang"

    keep(GOOD, scenario)
    hangs, where = (record for record in caplog.records if "hangs" in record.getMessage())
    assert "(9 s in one step)" in hangs.getMessage()
    assert "in pulse" in getattr(where, "stacks", "") and "most recent call first" in getattr(where, "stacks", "")


@pytest.mark.process
def test_one_that_hung_while_it_loads_is_not_ready_any_more(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says while its stacks are read comes too late: it is killed next."""

    async def scenario(scene: Scene) -> None:
        engine, worker, engine_ready = scene.engine, scene.workers.slots[0], scene.engine.info
        scene.kill_engine()
        scene.kill_worker()
        scene.start_engine(ready=False)
        scene.start_worker(ready=False)
        waiting = asyncio.create_task(engine.submit(generate("chat-1")))
        await until(lambda: engine.n_waiting == 1)

        for child, says in ((engine, engine_ready), (worker, WorkerReady())):

            async def stacks_of(pid: int, child: Any = child, says: Any = says) -> str:
                child.on_message(says)
                await asyncio.sleep(0.01)
                return ""

            monkeypatch.setattr(supervisor, "stacks_of", stacks_of)
            hung: Any = child.child
            await child._tell_hang(hung, "no further")
        assert not engine.up and not worker.up and worker.state == "down"
        assert scene.to_engine() == [] and not waiting.done()
        scene.kill_engine()
        scene.start_engine()
        await waiting
        scene.finished("chat-1", "done")

    play(scenario)


@pytest.mark.process
def test_a_child_that_ends_before_it_was_ready_cannot_start() -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        with pytest.raises(StartFailed, match="the worker could not start: exit code 3"):
            await asyncio.wait_for(task, 60)

    assert keep(BEGIN + "sys.exit(3)", scenario) == ["started", "down", "lost"]


@pytest.mark.process
@each_of(
    ("code", "end", "said"),
    [
        (1, "sys.exit(1)", "^a.json: no$"),
        (-signal.SIGPROF, "os.kill(os.getpid(), signal.SIGPROF)", "^a.json: no$"),
        (-signal.SIGPROF, "sys.exit(1)", "the worker could not start: exit code 1"),
    ],
)
def test_a_child_tells_why_it_ends_so_and_not_why_it_ends_otherwise(code: int, end: str, said: str) -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        with pytest.raises(StartFailed, match=said):
            await asyncio.wait_for(task, 60)

    told = f"import os, signal; from shm import Ending; channel.send(Ending(code={code}, why='a.json: no')); "
    assert keep(BEGIN + told + end, scenario) == ["started", "down", "lost"]


@pytest.mark.process
def test_one_that_gets_no_further_with_loading_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    """It pulses all the time: what it says of its steps decides."""

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        with pytest.raises(StartFailed, match="the worker could not start: SIGKILL"):
            await asyncio.wait_for(task, 60)

    assert keep(STUCK, scenario, pulse_seconds=30.0, load_seconds=1.0) == ["started", "down", "lost"]
    assert "no further for" in caplog.text


@pytest.mark.process
def test_garbage_ends_the_child_and_not_the_server() -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        await asyncio.wait_for(eventually(lambda: child.told.count("lost") == 1), 60)
        assert not task.done()

    script = BEGIN + "channel.send(WorkerReady()); channel._sock.sendall(b'\\x02\\0\\0\\0\\xff\\xff'); time.sleep(9)"
    assert keep(script, scenario)[:4] == ["started", "ready", "down", "lost"]


@pytest.mark.process
def test_last_words_are_heard() -> None:
    heard = []

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        child.on = lambda message: heard.append(message) if isinstance(message, WorkerPulse) else None
        await asyncio.wait_for(child.ready.wait(), 60)
        child.tell(child.start)
        await asyncio.wait_for(eventually(lambda: "lost" in child.told), 60)
        assert len(heard) == 2000

    says = "for _ in range(2000): channel.send(WorkerPulse(request_id=None, busy_seconds=0.0))\n"
    keep(BEGIN + "channel.send(WorkerReady()); channel.recv()\n" + says, scenario)


@pytest.mark.process
def test_a_defect_of_ours_is_not_taken_for_a_dead_child() -> None:
    def broken(message: Any) -> None:
        raise ZeroDivisionError

    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        child.on = broken
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(task, 60)

    keep(GOOD, scenario)


@pytest.mark.process
def test_a_child_that_does_not_end_is_killed() -> None:
    async def scenario(child: Supervised, task: "asyncio.Task[None]") -> None:
        await asyncio.wait_for(child.ready.wait(), 60)
        task.cancel()
        begun = time.monotonic()
        await asyncio.wait_for(child.end(0.2), 60)
        assert 0.2 <= time.monotonic() - begun and not child.children[0].alive
        assert child.children[0].exited.result() == -signal.SIGKILL

    keep(BEGIN + "channel.send(WorkerReady())\nthreading.Event().wait()", scenario)


def test_delays_grow_to_a_bound() -> None:
    assert [backoff(n) for n in (0, 1, 2, 3, 4)] == [0.0, 0.0, 0.5, 1.0, 2.0]
    assert backoff(50) == backoff(500) == 5.0


@each_of("role", ["engine", "worker"])
def test_the_third_start_in_a_row_may_still_succeed(play: Play, role: str) -> None:
    """Only starts that failed are counted: neither one that runs, nor the death of one that was ready."""

    async def scenario(scene: Scene) -> None:
        observer, kill = (scene.engine, scene.kill_engine) if role == "engine" else (scene.workers, scene.kill_worker)
        begin = scene.start_engine if role == "engine" else scene.start_worker

        def crash_looping() -> bool:
            return observer.crash_looping

        kill()
        for _ in range(2):
            begin(ready=False)
            kill()
        begin(ready=False)
        assert not crash_looping()
        kill()
        assert crash_looping()
        begin(ready=False)
        assert crash_looping(), "nobody waits for the attempts that follow"
        kill()
        begin()
        assert not crash_looping()
        for _ in range(3):
            kill()
            begin()
        assert not crash_looping()

    play(scenario)


def test_each_child_has_its_first_message_and_the_owner_as_it_is(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(
        media=MediaConfig(max_items=3), engine=EngineConfig(max_seqs=5), log=LogConfig(level="debug"), workers=1
    )
    largest = (LargestItem(kind="image", grid=(1, 2, 2), n_tokens=1, fixed=False),)
    launched: list[tuple[str, Ownership, Any]] = []
    monkeypatch.setattr(supervisor, "launch", lambda *args: launched.append(args))

    async def scenario(scene: Scene) -> None:
        owner = Owner.claim(tmp_path / "own")
        try:
            workers = WorkerPool(config, owner, scene.metrics, 77)
            children = [*workers.all, EngineClient(config, owner, scene.metrics, 77, largest)]
            roles = ["worker", "text_worker", "picture_worker", "engine"]
            assert [one.role for one in children] == roles
            worker, text, pictures, engine = (one.start for one in children)
            assert worker == StartWorker(
                checkpoint="/models/tiny",
                media=config.media,
                max_model_len=77,
                shm_root=str(owner.root),
                directory=os.getcwd(),
                compile_bytes=(512 << 20) // max(1, config.workers - 1),
            )
            assert text == msgspec.structs.replace(worker, lane="text")
            assert pictures == msgspec.structs.replace(worker, lane="picture")
            assert engine == StartEngine(
                checkpoint="/models/tiny", engine=config.engine, shm_root=str(owner.root), max_model_len=77,
                largest=largest,
            )  # fmt: skip
            for one in children:
                one.launch()
            assert [role for role, *_ in launched] == roles
            for _, owned, *_ in launched:
                assert (owned.owner_name, owned.shm_root, owned.log) == (owner.name, owner.root, config.log)
        finally:
            owner.close()

    play(scenario)
