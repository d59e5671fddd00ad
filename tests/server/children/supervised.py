"""A supervised child of a few lines, that keeps what befalls it."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from server.children.liveness import Liveness
from server.children.processes import Child
from server.children.supervisor import SupervisedChild
from shm import AsyncChannel, Ending, Loading, channel_pair
from tests.server.doubles import chat_of, config_of
from tokenization.messages import FromWorker, Prepare, WorkerReady

REPO = Path(__file__).resolve().parents[3]
BEGIN = """
import sys, time, threading
from shm import Channel
from tokenization.messages import Prepare, ToWorker, WorkerPulse, WorkerReady
channel = Channel(int(sys.argv[1]), Prepare)
channel.recv()
"""
PULSE = """
def pulse():
    while True:
        channel.send(WorkerPulse(request_id=None, busy_seconds=0.0)); time.sleep(0.05)
threading.Thread(target=pulse, daemon=True).start()
"""
OFFERS_STACKS = "from server.children.stacks import offer_stacks; offer_stacks()\n"
TO_THE_END = "from shm import ChannelClosed\ntry:\n    channel.recv()\nexcept ChannelClosed:\n    pass\n"
GOOD = OFFERS_STACKS + BEGIN + "channel.send(WorkerReady())" + PULSE + TO_THE_END


class LivenessDouble(Liveness):
    """That of a child whose work counts as hung when the test says so."""

    why: str | None = None

    def overdue(self, silent: float) -> str | None:
        return self.why


class Supervised(SupervisedChild):
    """Runs a script, and keeps what befalls it."""

    def __init__(self, script: str, *, pulse_seconds: float, load_seconds: float) -> None:
        config = config_of(pulse_seconds=pulse_seconds, load_seconds=load_seconds)
        self.counter = CounterDouble()
        owner: Any = None  # only its own launch() would ask it
        metrics: Any = self.counter
        start = Prepare(request_id="start", chat=chat_of("text"))
        super().__init__("worker", start, FromWorker, config, owner, metrics)
        self.liveness: LivenessDouble = LivenessDouble(config)
        self._script = script
        self.children: list[Child] = []
        self.told: list[str] = []
        self.renewal: str | None = None
        self.on: Callable[[Any], None] = lambda message: None

    def launch(self) -> Child:
        ours, theirs = channel_pair()
        fd = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", self._script, str(fd)], pass_fds=(fd,), cwd=REPO, stderr=subprocess.PIPE, bufsize=0
        )
        theirs.close()
        return Child("worker", process, AsyncChannel(ours, FromWorker | Loading | Ending))

    def on_started(self, child: Child) -> None:
        super().on_started(child)
        self.children.append(child)
        self.told.append("started")

    def handle(self, message: Any) -> None:
        self.on(message)
        if isinstance(message, WorkerReady):
            self.told.append("ready")
            self.on_ready()

    def on_unavailable(self) -> None:
        super().on_unavailable()
        if self.told and self.told[-1] in ("started", "ready"):
            self.told.append("down")

    def on_reaped(self) -> None:
        super().on_reaped()
        assert not self.children[-1].alive, "it is reaped by now"
        self.told.append("lost")

    def replacement_reason(self) -> str | None:
        return self.renewal


class CounterDouble:
    """Keeps what is counted."""

    def __init__(self) -> None:
        self.counted: list[str] = []
        self.children = self

    def restart(self, role: str) -> None:
        self.counted.append("restart")

    def hang(self, role: str) -> None:
        self.counted.append("hang")

    def renewal(self, role: str) -> None:
        self.counted.append("renewal")


def keep(
    script: str,
    scenario: Callable[[Supervised, "asyncio.Task[None]"], Coroutine[Any, Any, None]],
    *,
    pulse_seconds: float = 60.0,
    load_seconds: float = 60.0,
) -> list[str]:
    """Run a scenario with a child that runs `script`; what befell it."""
    found: list[Supervised] = []

    async def run() -> None:
        supervised = Supervised(script, pulse_seconds=pulse_seconds, load_seconds=load_seconds)
        found.append(supervised)
        task = asyncio.create_task(supervised.run())
        try:
            await scenario(supervised, task)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await supervised.end(2.0)
            assert all(not child.alive for child in supervised.children)

    asyncio.run(run())
    again = [what for what in found[0].counter.counted if what != "hang"]
    assert len(again) == max(0, found[0].told.count("started") - 1)
    return found[0].told


async def eventually(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)
