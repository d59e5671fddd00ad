"""Child processes: started by exec with two inherited descriptors, watched, ended."""

import asyncio
import errno
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from configs.logs import LogConfig
from configs.settings import REPO, child_env
from server.children.stderr_relay import StderrRelay
from server.engine_environment import of_engine
from server.usage import ProcessUsage, usage_of
from shm import AsyncChannel, channel_pair

log = logging.getLogger("pixelferry")

ChildRole = Literal["worker", "text_worker", "picture_worker", "engine", "fetcher"]
END_SECONDS = 3.0  # how long a child that was told to end may take before it is killed

# glibc keeps large blocks instead of returning them to the kernel: a picture's buffers are not faulted in again for
# every picture. A tenth of the page faults, and about 5 % less processor time (docs/log.md, 2026-11-22). Threads share
# one arena: what a decoder's threads have freed in arenas of their own is there for nobody, and does not go back.
KEEP_LARGE_BLOCKS = {
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 32),
    "MALLOC_TOP_PAD_": str(1 << 24),
}
# A worker never imports torch; should a dependency ever do, no device plugin may open a context in it.
OF_WORKERS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1"}
ENVIRONMENT: Mapping[ChildRole, Mapping[str, str]] = {
    "worker": {**OF_WORKERS, **KEEP_LARGE_BLOCKS},
    "text_worker": OF_WORKERS,
    "picture_worker": {**OF_WORKERS, **KEEP_LARGE_BLOCKS},
    # glibc's resolver gives a name server that is silent 5 s twice, more than a fetch may take to begin.
    "fetcher": {"RES_OPTIONS": "timeout:2 attempts:2"},
    # The engine loads a device's plugin by itself and says what is missing; torch would end it with a trace.
    "engine": {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
}

# A child leads a process group of its own, so that a terminal's Ctrl-C reaches the server alone, which then drains. It
# stays in the server's session: when the server dies the kernel finds the group without a parent there, and if the
# child is stopped, hangs it up and continues it, from its very first moment on (setpgid(2), orphaned process group).
OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"preexec_fn": os.setpgrp}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What all children of one server share: the lock that keeps their shared memory owned, where it lies, the log."""

    lock_fd: int
    owner_name: str
    shm_root: Path
    log: LogConfig = LogConfig()


class Child:
    """One incarnation of a child process, with the server's end of its channel.

    The kernel is asked by a thread of its own (waitid, without reaping), so that an exit is known at once on any
    kernel, and reaping and killing both happen on the event loop: a signal can never reach somebody else's process.
    """

    def __init__(self, role: ChildRole, process: "subprocess.Popen[bytes]", channel: AsyncChannel[Any]) -> None:
        """`process` has a pipe for its stderr, which is read from now on."""
        assert process.stderr is not None
        self.role = role
        self.pid = process.pid
        self.channel = channel
        self._process = process
        self._loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[int] = self._loop.create_future()  # the return code; the process is reaped
        self.last_usage = ProcessUsage()  # once it is
        threading.Thread(target=self._wait, name=f"wait-{role}-{self.pid}", daemon=True).start()
        self._stderr = StderrRelay(process.stderr, self._loop)

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    def kill(self) -> None:
        """SIGKILL: also a stopped process dies of it."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)  # not Popen.kill(), which polls and so reaps

    async def end(self, grace: float = END_SECONDS) -> None:
        """Close the channel, which tells the child to end; kill it when it has not after `grace` seconds."""
        self.channel.close()
        await asyncio.wait({self.exited}, timeout=grace)
        self.kill()
        await asyncio.wait({self.exited})

    def _wait(self) -> None:
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        self.last_usage = usage_of(self.pid)
        code = self._process.wait()
        self._stderr.close()
        if not self.exited.done():
            self.exited.set_result(code)


def launch(role: ChildRole, owned: Ownership, receives: Any, inherits: Sequence[int] = ()) -> Child:
    """Start `python -m server.children.child_main` with one end of a new channel and the owner's lock.

    Must run on the event loop. Raises OSError while the machine has no room for a process. `receives` is the union of
    messages that the child sends; inherits: further descriptors that it gets under the same numbers.
    """
    ours, theirs = channel_pair()
    try:
        process = _exec(role, owned, theirs, inherits)
    except BaseException:  # an interrupt too: a channel without a child must not stay open
        ours.close()
        raise
    finally:
        theirs.close()
    log.info("%s started, process %d", role, process.pid)
    try:
        return Child(role, process, AsyncChannel(ours, receives))
    except RuntimeError:  # no thread could be started
        ours.close()
        process.kill()
        process.communicate()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)) from None


def _exec(
    role: ChildRole, owned: Ownership, channel: socket.socket, inherits: Sequence[int] = ()
) -> "subprocess.Popen[bytes]":
    fds, env = (channel.fileno(), owned.lock_fd), child_env(ENVIRONMENT[role])
    return subprocess.Popen(
        [
            sys.executable, "-m", "server.children.child_main", role, str(fds[0]), str(fds[1]),
            str(owned.shm_root), owned.owner_name, owned.log.level, owned.log.format,
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
        cwd=REPO,
        env=of_engine(env) if role == "engine" else env,
        pass_fds=(*fds, *inherits),
        **OWN_GROUP,
    )  # fmt: skip


def died_of(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
