"""The ranks of an engine, over scripts that stand in for them: they meet, end together, and who began it is told."""

import asyncio
import errno
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from configs.serve import EngineConfig
from model.engine.messages import FromEngine
from server.children import supervisor
from server.children.engine_client import EngineClient, EngineDied, Stream
from server.children.processes import Child, ChildRole, Ownership
from server.children.supervisor import StartFailed
from server.metrics import Metrics
from shm import AsyncChannel, Ending, Loading, Owner, channel_pair
from tests.server.children.supervised import REPO, TO_THE_END, eventually
from tests.server.doubles import config_of

# A rank sends a byte to each other one that it has a socket to, waits for one, and writes its number into the meeting.
MEETS = """
import os, socket, sys, threading, time
from server.children.stacks import offer_stacks
offer_stacks()
from model.engine.messages import EnginePulse, EngineReady, RankReady, StartEngine
from shm import Channel, Ending
channel = Channel(int(sys.argv[1]), StartEngine)
start = channel.recv()
for link in start.links:
    sock = socket.socket(fileno=link)
    sock.send(b"x")
    assert sock.recv(1) == b"x"
with open(f"/proc/self/fd/{start.meeting}", "ab") as file:
    file.write(str(start.rank).encode())
"""
SERVES = (
    MEETS
    + """
while os.fstat(start.meeting).st_size < start.engine.tensor_parallel:
    time.sleep(0.01)
ready = EngineReady(device="cpu", dtype="float32", vocab_size=1, kv_blocks=1, block_size=1, memory=(),
                    max_media_tokens=1, ranks=start.engine.tensor_parallel)
channel.send(RankReady() if start.rank else ready)
def pulse():
    while True:
        channel.send(EnginePulse(step_seconds=0.0, step_tokens=0, step_patches=0)); time.sleep(0.05)
threading.Thread(target=pulse, daemon=True).start()
"""
    + TO_THE_END
)
REFUSES = (
    MEETS
    + """
if start.rank == 1:
    channel.send(Ending(code=1, why="rank 1 has no card"))
    sys.exit(1)
threading.Event().wait()
"""
)

Scenario = Callable[[EngineClient, "asyncio.Task[None]"], Coroutine[Any, Any, None]]


class Launcher:
    """In the place of `launch`: starts a script."""

    def __init__(self, script: str) -> None:
        self._script = script
        self.fails_at = -1  # which of the starts finds no room
        self.children: list[Child] = []
        self.inherited: list[tuple[int, ...]] = []
        self.beside: list[int] = []  # of each start: how many run then

    def __call__(self, role: ChildRole, owned: Ownership, receives: Any, inherits: Sequence[int]) -> Child:
        self.beside.append(sum(child.alive for child in self.children))
        if len(self.children) == self.fails_at:
            self.fails_at = -1
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        ours, theirs = channel_pair()
        fd = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", self._script, str(fd)], pass_fds=(fd, *inherits), cwd=REPO, stderr=subprocess.PIPE,
            bufsize=0,
        )  # fmt: skip
        theirs.close()
        self.children.append(Child(role, process, AsyncChannel(ours, FromEngine | Loading | Ending)))
        self.inherited.append(tuple(inherits))
        return self.children[-1]


def keep(
    script: str, scenario: Scenario, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n: int = 3,
    given: list[Launcher] | None = None, **fields: Any,
) -> Launcher:  # fmt: skip
    """Run a scenario with an engine of n ranks, which run `script`. given: gets what launches them."""
    launcher = Launcher(script)
    if given is not None:
        given.append(launcher)
    monkeypatch.setattr(supervisor, "launch", launcher)

    async def run() -> None:
        owner = Owner.claim(tmp_path / "own")
        config = config_of(engine=EngineConfig(tensor_parallel=n), **fields)
        engine = EngineClient(config, owner, Metrics("tiny", "1"), 77)
        task = asyncio.create_task(engine.run())
        try:
            await scenario(engine, task)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await engine.end(5.0)
            owner.close()
            assert not any(child.alive for child in launcher.children)

    before = set(os.listdir("/proc/self/fd"))
    asyncio.run(asyncio.wait_for(run(), 200))
    assert set(os.listdir("/proc/self/fd")) <= before, "a descriptor of theirs stays open here"
    return launcher


@pytest.mark.process
@pytest.mark.parametrize("n", [1, pytest.param(3, marks=pytest.mark.ranks)])
def test_all_meet_and_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, n: int) -> None:
    async def scenario(engine: EngineClient, task: "asyncio.Task[None]") -> None:
        await engine.ready.wait()
        assert engine.up and engine.info is not None and engine.info.ranks == n
        await eventually(lambda: all(rank.up for rank in engine.group.ranks))
        assert [rank.snapshot.role for rank in engine.group.ranks] == ["engine"] * (n - 1)

    script = SERVES if n > 1 else SERVES.replace(MEETS, MEETS.partition("for link")[0]).replace("start.meeting", "0")
    script = script if n > 1 else script.replace("os.fstat(0).st_size", "1")
    launcher = keep(script, scenario, monkeypatch, tmp_path, n)
    assert [len(fds) for fds in launcher.inherited] == [2] * (n - 1) + ([n] if n > 1 else [0])


@pytest.mark.faults
@pytest.mark.parametrize("which", [0, 2])
def test_a_death_ends_all_and_all_are_started_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, which: int
) -> None:
    """A request inside ends when none of them runs any more."""

    async def scenario(engine: EngineClient, task: "asyncio.Task[None]") -> None:
        await engine.ready.wait()
        first = [engine.child, *(rank.child for rank in engine.group.ranks)]
        stream = Stream("inside", unfinished={0})
        engine._inside["inside"] = stream
        victim = first[which]
        assert victim is not None
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(EngineDied):
            await stream.next()
        assert not any(child is not None and child.alive for child in first)
        assert not engine.up
        await eventually(lambda: engine.up)
        again = [engine.child, *(rank.child for rank in engine.group.ranks)]
        assert not set(first) & set(again)
        named = f"SIGKILL of engine rank {which}, process {victim.pid}" if which else "ended (SIGKILL)"
        assert [named in record.getMessage() for record in caplog.records if "starting another" in record.msg] == [True]
        # Once for all of them: the alert asks how often a role's processes ended.
        assert b'child_restarts_total{role="engine"} 1.0' in engine._metrics.render()

    with caplog.at_level(logging.ERROR, "pixelferry"):
        launcher = keep(SERVES, scenario, monkeypatch, tmp_path)
    assert len(launcher.children) == 6


@pytest.mark.faults
def test_one_that_stops_is_told_with_where_the_others_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(engine: EngineClient, task: "asyncio.Task[None]") -> None:
        await engine.ready.wait()
        await eventually(lambda: all(rank.up for rank in engine.group.ranks))
        victim = engine.group.ranks[0].child
        assert victim is not None
        os.kill(victim.pid, signal.SIGSTOP)
        await eventually(lambda: not engine.up)
        await eventually(lambda: engine.up)

    with caplog.at_level(logging.ERROR, "pixelferry"):
        keep(SERVES, scenario, monkeypatch, tmp_path, pulse_seconds=4.0)
    said = [record.getMessage() for record in caplog.records]
    assert any(text.startswith("engine rank 1 process") and "hangs (silent for" in text for text in said)
    stacks = [record.__dict__["stacks"] for record in caplog.records if "stacks" in record.__dict__]
    assert "it is stopped" in stacks[0] and all("line" in text for text in stacks[1:]) and len(stacks) == 3


@pytest.mark.process
def test_a_rank_that_refuses_ends_the_start_in_its_own_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    async def scenario(engine: EngineClient, task: "asyncio.Task[None]") -> None:
        with pytest.raises(StartFailed, match="^rank 1 has no card$"):
            await task

    keep(REFUSES, scenario, monkeypatch, tmp_path)


@pytest.mark.faults
def test_without_room_for_one_none_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Those that were started are ended, and all are tried again."""

    async def scenario(engine: EngineClient, task: "asyncio.Task[None]") -> None:
        await engine.ready.wait()
        launcher = given[0]
        launcher.fails_at = 4
        assert engine.child is not None
        engine.child.kill()
        await eventually(lambda: not engine.up)
        await eventually(lambda: engine.up)
        assert len(launcher.children) == 3 + 1 + 3
        assert launcher.beside == [0, 1, 2, 0, 1, 0, 1, 2], "those of one group alone"

    given = list[Launcher]()
    keep(SERVES, scenario, monkeypatch, tmp_path, given=given)
