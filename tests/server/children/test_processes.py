"""Children are started by exec with two descriptors, known to have ended, and ended by force where it is needed."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from configs.settings import REPO
from server.children import processes
from server.children.processes import Child, ChildRole, Ownership, died_of, launch
from shm import AsyncChannel, channel_pair
from tests.e2e.running import is_gone, stat_of
from tests.e2e.running import until as wait_until
from tests.server.doubles import until
from tests.server.tables import each_of
from tokenization.messages import FromWorker, WorkerReady

# Stands where Python stands: writes down how it was started, says that it is ready, and ends when it is told to.
REPORTS = """
import json, os, pathlib, sys
def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True
report = {
    "argv": sys.argv[1:], "fds": [fd for fd in range(256) if is_open(fd)], "env": dict(os.environ),
    "cwd": os.getcwd(), "group": os.getpgid(0), "session": os.getsid(0), "stdin": os.readlink("/proc/self/fd/0"),
}
pathlib.Path(sys.argv[-4], "report.json").write_text(json.dumps(report))
channel = int(sys.argv[4])
body = b"\\x81\\xa4type\\xabWorkerReady"
os.write(channel, len(body).to_bytes(4, "little") + body)
while os.read(channel, 64):
    pass
sys.exit(7)
"""
UNTIL_CLOSED = "import os, sys\nwhile os.read(int(sys.argv[1]), 64): pass\nsys.exit(5)"
FOREVER = "import time\ntime.sleep(600)"


# A server that stops its child in its first moment, long before the child could ask the kernel for anything.
STOPS_ITS_CHILD = """
import asyncio, os, signal, sys
from pathlib import Path
from server.children.processes import Ownership, launch
from shm import Loading
async def main():
    with open(sys.argv[1], "w") as lock:
        owned = Ownership(lock_fd=lock.fileno(), owner_name="0" * 16, shm_root=Path(sys.argv[1]).parent / "shm")
        child = launch("worker", owned, Loading)
        os.kill(child.pid, signal.SIGSTOP)
        print(child.pid, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario, 60)

    asyncio.run(bounded())


def child_of(script: str) -> Child:
    """A child that runs `script`, whose first argument is its end of the channel."""
    ours, theirs = channel_pair()
    fd = str(theirs.fileno())
    process = subprocess.Popen(
        [sys.executable, "-ISc", script, fd], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, bufsize=0
    )
    theirs.close()
    return Child("worker", process, AsyncChannel(ours, FromWorker))


def launched(role: ChildRole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], int, int]:
    """What a child of that role reports of its start; its process id, and the lock's descriptor."""
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable} -IS\n{REPORTS}")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    found: list[int] = []

    async def scenario() -> None:
        with (tmp_path / "lock").open("w") as lock:
            owned = Ownership(lock_fd=lock.fileno(), owner_name="0" * 16, shm_root=tmp_path)
            child = launch(role, owned, FromWorker)
            assert await child.channel.recv() == WorkerReady() and child.alive and child.role == role
            await child.end(30)
            assert child.exited.result() == 7
            found.extend((child.pid, lock.fileno()))

    run(scenario())
    return json.loads((tmp_path / "report.json").read_text()), found[0], found[1]


def test_a_child_is_started_by_exec_with_its_channel_and_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else is inherited, not even what this process would leave to others."""
    with (tmp_path / "other").open("w") as other:
        os.set_inheritable(other.fileno(), True)
        before = os.dup(0)
        os.dup2(other.fileno(), 0)
        try:
            report, pid, lock_fd = launched("engine", tmp_path, monkeypatch)
        finally:
            os.dup2(before, 0)
            os.close(before)
    *command, channel_fd, lock, root, owner, level, form = report["argv"]
    assert command == ["-m", "server.children.child_main", "engine"]
    assert (level, form) == ("info", "text")
    assert (lock, root, owner) == (str(lock_fd), str(tmp_path), "0" * 16)
    assert report["fds"] == sorted([0, 1, 2, lock_fd, int(channel_fd)])
    assert (report["cwd"], report["stdin"]) == (str(REPO), "/dev/null")
    assert report["group"] == pid, "a terminal's Ctrl-C does not reach it"
    assert report["session"] == os.getsid(0), "the kernel continues it when the server dies"


def test_a_child_stopped_in_its_first_moment_ends_with_its_server(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STOPS_ITS_CHILD, str(tmp_path / "lock")]
    server = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    child = int(server.stdout.readline())
    try:
        wait_until("it stands still", lambda: stat_of(child)[0] == "T")
        server.kill()
        server.wait()
        wait_until("it is gone", lambda: is_gone(child))
    finally:
        server.stdout.close()
        if not is_gone(child):
            os.kill(child, signal.SIGKILL)


@each_of("role", ["worker", "engine"])
def test_no_plugin_of_torch_loads_by_itself_and_a_worker_is_kept_from_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, role: ChildRole
) -> None:
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "1")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OF_THE_USER", "kept")
    env = launched(role, tmp_path, monkeypatch)[0]["env"]
    found = (env["TORCH_DEVICE_BACKEND_AUTOLOAD"], env["OMP_NUM_THREADS"], "MALLOC_MMAP_THRESHOLD_" in env)
    assert found == {"worker": ("0", "1", True), "engine": ("0", "3", False)}[role]
    assert ("LRU_CACHE_CAPACITY" in env) == (role == "engine")
    assert env["OF_THE_USER"] == "kept"


def test_a_start_that_fails_leaves_no_channel_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[socket.socket] = []

    def noted() -> tuple[socket.socket, socket.socket]:
        ends.extend(channel_pair())
        return ends[0], ends[1]

    async def scenario() -> None:
        with (tmp_path / "lock").open("w") as lock, pytest.raises(FileNotFoundError):
            launch("worker", Ownership(lock_fd=lock.fileno(), owner_name="x", shm_root=tmp_path), FromWorker)

    monkeypatch.setattr(processes, "channel_pair", noted)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    run(scenario())
    assert [end.fileno() for end in ends] == [-1, -1]


def test_the_end_is_known_without_being_asked_for() -> None:
    async def scenario() -> None:
        children = [child_of("raise SystemExit(3)"), child_of("import os; os.abort()")]
        codes = await asyncio.gather(*(child.exited for child in children))
        assert codes == [3, -signal.SIGABRT] and not any(child.alive for child in children)
        for child in children:
            with pytest.raises(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
            child.channel.close()

    run(scenario())


def test_a_stopped_child_can_be_killed() -> None:
    async def scenario() -> None:
        child = child_of(FOREVER)
        os.kill(child.pid, signal.SIGSTOP)
        await until(lambda: Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")
        assert child.alive
        child.kill()
        assert await child.exited == -signal.SIGKILL
        child.channel.close()

    run(scenario())


def test_nobody_is_signalled_after_the_child_is_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another process's by then."""

    def signalled(*args: object) -> None:
        raise AssertionError("who was that?")

    async def scenario() -> None:
        child = child_of("")
        assert await child.exited == 0
        monkeypatch.setattr(os, "kill", signalled)
        child.kill()
        await child.end(0)

    run(scenario())


def test_a_child_that_is_told_to_end_may_end_by_itself() -> None:
    async def scenario() -> None:
        child = child_of(UNTIL_CLOSED)
        assert child.alive
        await child.end(30)
        assert child.exited.result() == 5

    run(scenario())


def test_a_child_that_does_not_end_is_killed_after_its_grace() -> None:
    async def scenario() -> None:
        child = child_of(FOREVER)
        await child.end(0.05)
        assert child.exited.result() == -signal.SIGKILL

    run(scenario())


def test_return_codes_in_words() -> None:
    assert [died_of(code) for code in (0, 3, -9, -11)] == ["exit code 0", "exit code 3", "SIGKILL", "SIGSEGV"]
    assert died_of(-250) == "signal 250"


def test_a_process_without_a_thread_to_watch_it_does_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has no room for one: that is an OSError, as where it has none for the process itself."""
    started: list[subprocess.Popen[bytes]] = []
    real = subprocess.Popen

    def popen(*args: Any, **kwargs: Any) -> "subprocess.Popen[bytes]":
        started.append(real([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[0]

    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def scenario() -> None:
        with (tmp_path / "lock").open("w") as lock:
            owned = Ownership(lock_fd=lock.fileno(), owner_name="0" * 16, shm_root=tmp_path)
            monkeypatch.setattr(subprocess, "Popen", popen)
            monkeypatch.setattr(threading.Thread, "start", no_room)
            before = os.listdir("/proc/self/fd")
            with pytest.raises(BlockingIOError):
                launch("worker", owned, FromWorker)
            assert started[0].returncode == -signal.SIGKILL
            assert started[0].stdin is not None
            started[0].stdin.close()
            assert os.listdir("/proc/self/fd") == before

    run(scenario())
