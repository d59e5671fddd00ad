"""One whole Pixelferry server that belongs to a replica: started on the loopback, drained, gone with its replica."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpcore2

from configs.settings import REPO
from deploy.ray.forwarding import Head, Headers
from shm import OwnerError, default_root, sweep

LOOK_SECONDS = 3.0  # for an answer that needs no work
SILENT_SECONDS = 8.0  # without one a server hangs; sooner it may only be busy
HUNG_SECONDS = 60.0  # without one it is given up
POLL_SECONDS = 0.1
IDLE_SECONDS = 5.0  # a connection is kept: less than the load test waits before it counts what a server holds
LOST = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException)  # no answer, or half of one
OURS = ("--host", "--port", "--url-file", "--shm-root", "--parent-descriptor", "--ssl-certfile", "--ssl-keyfile")
LOCAL: Headers = [(b"host", b"localhost")]


class ServerEnded(RuntimeError):
    """The server of this replica ended by itself, and its own last line says why; or it hung."""


class ServerProcess:
    """Its process, and the connections to it. Whoever made it holds the pipe whose end it watches."""

    def __init__(self, process: "subprocess.Popen[bytes]", held: int, directory: "tempfile.TemporaryDirectory[str]"):
        self._process = process
        self._held = held
        self._directory = directory
        self._url_file = Path(directory.name, "url")
        self._origin = ("", 0)
        self._silent_since: float | None = None  # the first question of those that it left without an answer
        self.connections = httpcore2.AsyncConnectionPool(max_connections=None, keepalive_expiry=IDLE_SECONDS)

    @property
    def pid(self) -> int:
        return self._process.pid

    def url(self, target: bytes) -> httpcore2.URL:
        host, port = self._origin
        return httpcore2.URL(scheme=b"http", host=host.encode(), port=port, target=target)

    async def ready(self) -> None:
        """Return once it answers that it is. Raises ServerEnded."""
        while not self._url_file.exists():
            self.check_alive()
            await asyncio.sleep(POLL_SECONDS)
        address = httpcore2.URL(self._url_file.read_text(encoding="ascii").strip())
        self._origin = (address.host.decode(), address.port or 80)
        while not await self.answers(b"/health/ready"):
            self.check_alive()
            await asyncio.sleep(POLL_SECONDS)
        _sweep_replicas()  # a process with a card takes its time to die: again

    def check_alive(self) -> None:
        """Raise ServerEnded where it does not run any more."""
        if (code := self._process.poll()) is not None:
            raise ServerEnded(f"the server of this replica ended with {code}")

    async def check_live(self) -> None:
        """Raise ServerEnded where it does not run any more, or gives no answer for HUNG_SECONDS.

        That one is killed: it may hear no other signal, and would keep its card. Its children see its end.
        """
        self.check_alive()
        if self._origin[1] == 0:
            return  # it starts
        try:
            await self.get(b"/health/live", LOCAL, LOOK_SECONDS)
        except LOST:
            now = time.monotonic()
            if self._silent_since is None:
                self._silent_since = now
            if now - self._silent_since < HUNG_SECONDS:
                return
            self._process.kill()
            raise ServerEnded(f"the server of this replica gave no answer for {HUNG_SECONDS:.0f} s") from None
        self._silent_since = None

    async def answers(self, target: bytes, seconds: float = LOOK_SECONDS) -> bool:
        """Whether a GET is a 200 by then."""
        try:
            head, _ = await self.get(target, LOCAL, seconds)
        except LOST:
            return False
        return head.status == 200

    async def get(self, target: bytes, headers: Headers, seconds: float = LOOK_SECONDS) -> tuple[Head, bytes]:
        """A short answer. Raises httpcore2's errors."""
        each = dict.fromkeys(("connect", "read", "write", "pool"), seconds)
        request = httpcore2.Request("GET", self.url(target), headers=headers, extensions={"timeout": each})
        response = await self.connections.handle_async_request(request)
        try:
            body = await response.aread()
        finally:
            await response.aclose()
        return Head(response.status, lowered(response.headers)), body

    async def end(self) -> None:
        """Let it drain; return once it is gone."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self._process.wait)
        await self.connections.aclose()
        os.close(self._held)
        self._directory.cleanup()


def start(flags: Sequence[str], name: str) -> ServerProcess:
    """A server of its own for the replica `name`, whose flags are `flags` and those that OURS names.

    It inherits one end of a pipe. However this process dies, the kernel closes the other end, and the server ends:
    there is no guard process that could die first, and no orphan holds a card. Shared memory of replicas on this
    machine that died with all their children is freed before, and once it is ready.
    """
    _sweep_replicas()
    watched, held = os.pipe()
    directory = tempfile.TemporaryDirectory(prefix="pixelferry-replica-")
    own = ["--host", "127.0.0.1", "--port", "0", "--url-file", f"{directory.name}/url"]
    own += ["--shm-root", f"{default_root()}-{name}", "--parent-descriptor", str(watched)]
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "server", "serve", *flags, *own],
            stdin=subprocess.DEVNULL, pass_fds=[watched], cwd=REPO, start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(held)
        directory.cleanup()
        raise
    finally:
        os.close(watched)
    return ServerProcess(process, held, directory)


def _sweep_replicas() -> None:
    root = default_root()
    for left in root.parent.glob(f"{root.name}-*"):
        with contextlib.suppress(OwnerError):  # what is there is no directory of ours
            sweep(left)


def lowered(headers: Sequence[tuple[bytes, bytes]]) -> Headers:
    return [(name.lower(), value) for name, value in headers]
