"""The longest block of an event loop in processor time: from within the loop, or of a server seen from outside.

Processor time, not the time of a clock on the wall: a busy machine takes turns away from a loop, and only work that the
loop itself does keeps it from its next turn.
"""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

QUESTION = b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
PAUSE_SECONDS = 0.002  # between two questions: a block that a test is about is many times longer


class Longest:
    """What was seen: how many turns, and the most processor time that one of them took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.turns = 0

    def saw(self, seconds: float) -> None:
        self.turns += 1
        self.seconds = max(self.seconds, seconds)

    def assert_within(self, seconds: float) -> None:
        assert self.turns > 0, "the loop was never looked at"
        assert self.seconds <= seconds, f"the loop was blocked for {self.seconds:.3f} s of processor time"


@asynccontextmanager
async def own_loop() -> AsyncIterator[Longest]:
    """Watch the running loop: a task that asks for every turn, and the loop thread's clock between two of them."""
    longest = Longest()

    async def watch() -> None:
        last = time.thread_time()
        while True:
            await asyncio.sleep(0)
            now = time.thread_time()
            longest.saw(now - last)
            last = now

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    try:
        yield longest
        await asyncio.sleep(0)
    finally:
        watching.cancel()


@contextmanager
def loop_of(url: str, pid: int) -> Iterator[Longest]:
    """Watch a server's loop, in its main thread, from another process and without its help.

    `/health/live` is answered by the loop alone, so between a question and its answer lie one to three turns. What the
    kernel counted meanwhile for the main thread is at least the longest of them: a bound from above.
    """
    longest, over, begun = Longest(), threading.Event(), threading.Event()
    address = urlsplit(url)
    failed: list[Exception] = []

    def watch() -> None:
        try:
            with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as sock:
                while not over.is_set():
                    before = main_thread_seconds(pid)
                    sock.sendall(QUESTION)
                    _read_answer(sock)
                    longest.saw(main_thread_seconds(pid) - before)
                    begun.set()
                    over.wait(PAUSE_SECONDS)
        except Exception as error:  # noqa: BLE001 - a thread's main: raised again where the block ends
            failed.append(error)
            begun.set()

    thread = threading.Thread(target=watch, name="loop-watch")
    thread.start()
    begun.wait()  # a connection that has asked for nothing yet would give way to those of an attack
    try:
        yield longest
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def main_thread_seconds(pid: int) -> float:
    """Processor time of a process's first thread; the kernel may be a tick behind."""
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0]) / 1e9


def _read_answer(sock: socket.socket) -> None:
    """Read one answer of known length; a connection that ends instead is an error."""
    got = b""
    while b"\r\n\r\n" not in got:
        got += _some(sock)
    head, _, body = got.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    assert head.startswith(b"HTTP/1.1 200") and len(lengths) == 1, head
    while len(body) < int(lengths[0]):
        body += _some(sock)


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    assert data, "the server closed the connection of the watch"
    return data
