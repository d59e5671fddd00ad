"""A replica's own server: ready when it says so, drained at its end, and gone with whoever held it."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from configs.settings import REPO
from deploy.ray import server_process as module
from deploy.ray.forwarding import Head
from deploy.ray.server_process import ServerEnded, ServerProcess, start
from shm import Owner, default_root
from tests.e2e.running import children_of, is_gone, until

FLAGS = ("--device", "cpu", "--kv-cache-mib", "64", "--threads", "1", "--workers", "1")
HOLDER = """
import asyncio, os, sys
from deploy.ray.server_process import start
server = start(sys.argv[1:], "held" + str(os.getpid()))
asyncio.run(server.ready())
print("server", server.pid, flush=True)
asyncio.run(asyncio.sleep(600))
"""


@pytest.mark.faults
def test_it_serves_until_it_is_told_to_end() -> None:
    name = f"test{os.getpid()}"
    root = Path(f"{default_root()}-{name}")

    async def life() -> tuple[Head, bytes]:
        server = start(FLAGS, name)
        await server.ready()
        assert root.exists() and await server.answers(b"/health/live") and not await server.answers(b"/nowhere")
        answer = await server.get(b"/v1/models", [(b"host", b"localhost")])
        await server.check_live()
        await server.end()
        with pytest.raises(ServerEnded, match="ended with 0"):
            await server.check_live()
        return answer

    head, body = asyncio.run(life())
    assert head.status == 200 and (b"content-type", b"application/json") in head.headers
    assert b'"object":"list"' in body and str(REPO).encode() not in body, "its clients are those of the ingress"
    assert not root.exists()


@pytest.mark.faults
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_gone_with_its_holder(ranks: int) -> None:
    """With the process of every card that it has."""
    command = [sys.executable, "-c", HOLDER, *FLAGS, "--tensor-parallel", str(ranks)]
    holder = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        lines = iter(holder.stdout.readline, "")
        server = next(int(line.split()[1]) for line in lines if line.startswith("server "))
        family = [server, *children_of(server)]
        commands = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in family]
        assert sum(b"engine" in words for words in commands) == ranks
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    until("all are gone", lambda: all(map(is_gone, family)), 15)
    until("and their memory", lambda: not Path(f"{default_root()}-held{holder.pid}").exists(), 20)


@pytest.mark.faults
def test_the_next_one_frees_what_a_replica_left_that_died_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its server and all children at once, so that nobody of its own sweeps. What lives keeps its own."""
    root = Path(f"/dev/shm/pixelferry-whole-{os.getpid()}")
    monkeypatch.setattr(module, "default_root", lambda: root)
    dead, strange, lives = (Path(f"{root}-{name}") for name in ("dead", "strange", "lives"))

    async def life() -> None:
        server = start(FLAGS, "dead")
        await server.ready()
        children = children_of(server.pid)
        os.kill(server.pid, signal.SIGSTOP)  # it hears of no death
        for pid in (*children, server.pid):
            os.kill(pid, signal.SIGKILL)
        await server.end()
        assert len(children) > 1 and list(dead.glob("*.owner")), "nobody has swept"
        until("all threads of all are dead", lambda: all(map(is_unlocked, dead.glob("*.owner"))), 15)
        owner = Owner.claim(lives)
        strange.touch()
        try:
            for _ in range(2):
                await start(("--model", "/nowhere"), "next").end()
                assert not dead.exists() and lives.joinpath(f"{owner.name}.owner").exists() and strange.exists()
        finally:
            strange.unlink()
            owner.close()
        assert not lives.exists()

    asyncio.run(life())


def is_unlocked(path: Path) -> bool:
    """A killed process may be a zombie already, and a thread of it still hold the lock for some milliseconds."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


class FakeServer:
    """Answers each question after so many seconds; its process does nothing."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await asyncio.sleep(self.seconds)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    @contextlib.asynccontextmanager
    async def started(self) -> AsyncIterator[ServerProcess]:
        """Not ready yet."""
        listener = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        server = ServerProcess(subprocess.Popen(["sleep", "60"]), os.dup(1), tempfile.TemporaryDirectory())
        Path(server._directory.name, "url").write_text(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}")
        try:
            yield server
        finally:
            listener.close()
            await server.end()


@pytest.mark.process
def test_what_dies_late_is_freed_once_the_next_one_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(f"/dev/shm/pixelferry-late-{os.getpid()}")
    monkeypatch.setattr(module, "default_root", lambda: root)
    late = Path(f"{root}-dying")

    async def life() -> None:
        owner = Owner.claim(late)
        await start(("--model", "/nowhere"), "next").end()
        assert late.exists()
        os.close(owner.fileno())
        async with FakeServer(0.0).started() as server:
            await server.ready()
            assert not late.exists()

    asyncio.run(life())


@pytest.mark.process
def test_a_busy_server_may_take_its_time() -> None:
    async def life() -> list[bool]:
        async with FakeServer(0.3).started() as server:
            await server.ready()
            return [await server.answers(b"/health/ready", seconds) for seconds in (0.1, 5.0)]

    assert asyncio.run(life()) == [False, True]


@pytest.mark.process
def test_a_server_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that starts, nor one that is silent for less than a minute."""
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    fake = FakeServer(60.0)

    async def look(server: ServerProcess, seconds: float, *, answers: bool) -> None:
        """At that time."""
        nonlocal now
        now = seconds
        fake.seconds = 0.0 if answers else 60.0
        monkeypatch.setattr(module, "LOOK_SECONDS", 30.0 if answers else 0.05)
        await server.check_live()

    async def life() -> None:
        async with fake.started() as server:
            for at in (0, 1000):
                await look(server, at, answers=False)
            fake.seconds = 0.0
            await server.ready()
            for at, answers in ((1001, False), (1060, False), (1062, True), (1100, False), (1159, False)):
                await look(server, at, answers=answers)
            with pytest.raises(ServerEnded, match="gave no answer for 60 s"):
                await look(server, 1160, answers=False)
            assert await asyncio.to_thread(server._process.wait, 30) == -signal.SIGKILL
            with pytest.raises(ServerEnded, match="ended with -9"):
                await look(server, 1161, answers=True)

    asyncio.run(life())


@pytest.mark.ray
def test_a_replica_is_as_healthy_as_its_server() -> None:
    pytest.importorskip("ray", reason="run by `make test-ray`")
    from deploy.ray.replica import Replica

    class Hung:
        async def check_live(self) -> None:
            raise ServerEnded("it hangs")

        async def end(self) -> None:
            return

    replica: Any = Replica.__new__(Replica)
    replica._server = Hung()
    with pytest.raises(ServerEnded):
        asyncio.run(replica.check_health())


@pytest.mark.process
def test_one_that_cannot_start_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    async def life() -> None:
        server = start(("--model", "/nowhere"), f"test{os.getpid()}")
        try:
            await server.ready()
        finally:
            await server.end()

    with pytest.raises(ServerEnded, match="ended with [12]"):
        asyncio.run(life())
    assert "/nowhere" in capfd.readouterr().err
