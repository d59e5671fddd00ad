"""A supervisor with children of a few lines each, and a double of who observes them."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from server.children.processes import Child
from server.children.supervisor import Supervisor
from shm import AsyncChannel, Ending, Loading, channel_pair
from tests.server.doubles import chat_of
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
GOOD = OFFERS_STACKS + BEGIN + "channel.send(WorkerReady())" + PULSE + "threading.Event().wait()"


class ObserverDouble:
    """Keeps what the supervisor tells."""

    def __init__(self) -> None:
        self.children: list[Child] = []
        self.told: list[str] = []
        self.why: str | None = None
        self.renewal: str | None = None
        self.counter = CounterDouble()
        self.on: Callable[[Any], None] = lambda message: None

    def on_started(self, child: Child) -> None:
        self.children.append(child)
        self.told.append("started")

    def on_message(self, message: Any) -> bool:
        self.on(message)
        if isinstance(message, WorkerReady):
            self.told.append("ready")
            return True
        return False

    def on_unavailable(self) -> None:
        if self.told[-1] != "down":
            self.told.append("down")

    def on_reaped(self) -> None:
        assert not self.children[-1].alive, "it is reaped by now"
        self.told.append("lost")

    def hang_reason(self, silent: float) -> str | None:
        return self.why

    def renewal_reason(self) -> str | None:
        return self.renewal


class CounterDouble:
    """Keeps what the supervisor counts."""

    def __init__(self) -> None:
        self.counted: list[str] = []

    def restart(self, role: str) -> None:
        self.counted.append("restart")

    def hang(self, role: str) -> None:
        self.counted.append("hang")

    def renewal(self, role: str) -> None:
        self.counted.append("renewal")


def launcher(script: str) -> Callable[[], Child]:
    def launch() -> Child:
        ours, theirs = channel_pair()
        fd = theirs.fileno()
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(fd)], pass_fds=(fd,), cwd=REPO, stderr=subprocess.PIPE, bufsize=0
        )
        theirs.close()
        return Child("worker", process, AsyncChannel(ours, FromWorker | Loading | Ending))

    return launch


def keep(
    script: str,
    scenario: Callable[[Supervisor, ObserverDouble, "asyncio.Task[None]"], Coroutine[Any, Any, None]],
    *,
    pulse_seconds: float = 60.0,
    load_seconds: float = 60.0,
) -> list[str]:
    """Run a scenario with a supervisor of children that run `script`; what the observer was told."""
    observer = ObserverDouble()

    async def run() -> None:
        start = Prepare(request_id="start", chat=chat_of("text"))
        supervisor = Supervisor(
            "worker",
            launcher(script),
            start,
            observer,
            pulse_seconds=pulse_seconds,
            load_seconds=load_seconds,
            counter=observer.counter,
        )
        task = asyncio.create_task(supervisor.run())
        try:
            await scenario(supervisor, observer, task)
        finally:
            task.cancel()
            await asyncio.wait({task})
            await supervisor.end(2.0)
            assert all(not child.alive for child in observer.children)

    asyncio.run(run())
    again = [what for what in observer.counter.counted if what != "hang"]
    assert len(again) == max(0, observer.told.count("started") - 1)
    return observer.told


async def eventually(true: Callable[[], bool]) -> None:
    while not true():
        await asyncio.sleep(0.01)
