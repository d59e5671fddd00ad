"""Plants the cause of each alert at a running server, under a real Prometheus, and waits until the alert fires.

    python -m tests.deploy.fire

The rules look back 30 s instead of minutes and wait for nothing; otherwise they are the shipped ones.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.deploy.prometheus import Prometheus, at_once, watching
from tests.deploy.shipped import alerts
from tests.e2e.running import RunningServer, data_url, picture, running, until
from tests.tiny.qwen2_vl import write_qwen2_vl

FIRE_SECONDS = 120.0
NARROW = ("--max-seqs", "1", "--max-requests", "4", "--shm-mib", "1", "--canary-seconds", "1")
NARROW_TIMES = ("--canary-deadline-seconds", "0.5", "--pulse-seconds", "60")
SILENT = ("--canary-seconds", "0", "--pulse-seconds", "600", "--kv-cache-mib", "1", "--block-size", "16")
LARGE = data_url(picture(588, 560))  # 0.94 of the pool's one MiB


class Watched:
    """One server under Prometheus, and which alerts have fired."""

    def __init__(self, server: RunningServer, prometheus: Prometheus) -> None:
        self.server = server
        self.prometheus = prometheus
        self.fired: dict[str, float] = {}

    def fires(self, *names: str, doing: Callable[[], Any] = lambda: None) -> None:
        """Wait until all of these alerts fired at one time or another, doing this meanwhile."""
        begun = time.monotonic()

        def seen() -> bool:
            doing()
            for name in self.prometheus.firing() - self.fired.keys():
                self.fired[name] = time.monotonic() - begun
                print(f"  {name} after {self.fired[name]:.0f} s: {self.prometheus.annotations(name).get('summary')}")
            return self.fired.keys() >= set(names)

        until(f"{names} fire", seen, FIRE_SECONDS, every=0.3, said=lambda: f"fired: {sorted(self.fired)}")

    def kill(self, role: str) -> None:
        for pid in self.server.children(role)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def clients(url: str, n: int, body: dict[str, Any]) -> Iterator[None]:
    """So many that ask again and again."""
    end = threading.Event()

    def ask() -> None:
        while not end.wait(0.05):
            with contextlib.suppress(httpx.HTTPError):
                httpx.post(f"{url}/chat", json=body, timeout=60)

    threads = [threading.Thread(target=ask) for _ in range(n)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        end.set()
        for thread in threads:
            thread.join()


@contextmanager
def small_memory(root: Path) -> Iterator[None]:
    """A tmpfs of 4 MiB that others may enter, too: the server makes a directory of its own in it."""
    root.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(root)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(root)], check=True)


def chat(tokens: int, *inputs: dict[str, str], **parameters: Any) -> dict[str, Any]:
    wishes = {"max_tokens": tokens, "temperature": 0, "ignore_eos": True, **parameters}
    return {"inputs": [*inputs, {"text": "Hi"}], "parameters": wishes}


def too_many(watched: Watched) -> None:
    """More requests than the server takes, each of many tokens, in one place; pictures wait, and fill the pool."""
    with clients(watched.server.url, 7, chat(12_000, {"image": LARGE})):
        watched.fires(
            "PixelferryTurnsAway", "PixelferryQueues", "PixelferryFirstTokenLate", "PixelferrySharedMemoryFull"
        )


def engines_that_hang_and_die(watched: Watched) -> None:
    with clients(watched.server.url, 2, chat(200)):
        for engine in watched.server.children("engine"):
            os.kill(engine, signal.SIGSTOP)
        watched.fires("PixelferryNotReady", "PixelferryEngineStuck", "PixelferryProcessHung")
        watched.fires("PixelferryErrors", "PixelferryRestarts", doing=lambda: watched.kill("engine"))


def workers_that_die(watched: Watched) -> None:
    watched.fires("PixelferryWorkersMissing", "PixelferryProcessDown", doing=lambda: watched.kill("worker"))


def a_small_cache(watched: Watched) -> None:
    with clients(watched.server.url, 3, chat(1500, n=8)):
        watched.fires("PixelferryPreempts")


def few_descriptors(watched: Watched) -> None:
    pid = watched.server.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 4, limits[1]))
    watched.fires("PixelferryDescriptors")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def memory_that_nobody_gives_back(watched: Watched) -> None:
    """The engine is stopped and never lets go of the picture of a client that has left."""
    (engine,) = watched.server.children("engine")
    os.kill(engine, signal.SIGSTOP)
    with contextlib.suppress(httpx.TimeoutException):
        httpx.post(f"{watched.server.url}/chat", json=chat(4, {"image": LARGE}), timeout=2)
    watched.fires("PixelferrySharedMemoryLeak")
    os.kill(engine, signal.SIGCONT)


def memory_that_others_take(watched: Watched) -> None:
    """A file of somebody else's, beside the server's directory."""
    free = os.statvfs(watched.server.root)
    filler = watched.server.root / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize)
    watched.fires("PixelferrySharedMemoryTaken")
    filler.unlink()


def a_server_that_does_not_answer(watched: Watched) -> None:
    os.kill(watched.server.pid, signal.SIGSTOP)
    watched.fires("PixelferryDown")
    os.kill(watched.server.pid, signal.SIGCONT)


SCENES: tuple[tuple[tuple[str, ...], tuple[Callable[[Watched], None], ...]], ...] = (
    (NARROW + NARROW_TIMES, (too_many, engines_that_hang_and_die, workers_that_die)),
    (
        SILENT,
        (
            a_small_cache,
            few_descriptors,
            memory_that_nobody_gives_back,
            memory_that_others_take,
            a_server_that_does_not_answer,
        ),
    ),
)


def fire(at: Path) -> set[str]:
    """The alerts that never fired."""
    left = set(alerts())
    model = write_qwen2_vl(at / "model", tied=False)
    for number, (flags, scenes) in enumerate(SCENES):
        own = at / str(number)
        with (
            small_memory(own / "shm"),
            running(model, own / "shm", own / "logs", *flags) as server,
            watching(server.url.removeprefix("http://"), own / "prometheus", 1, at_once) as prometheus,
        ):
            watched = Watched(server, prometheus)
            for scene in scenes:
                print(scene.__name__, flush=True)
                scene(watched)
            left -= watched.fired.keys()
    return left


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        left = fire(Path(name))
    print(f"never fired: {sorted(left)}" if left else f"all {len(alerts())} alerts fired")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
