"""Attacks on a server's children and on its shared memory, as blocks in which they go on."""

import os
import random
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from shm import sweep
from tests.e2e.running import RunningServer, is_gone, stat_of, until

NO_OWNER = "is no owner file"  # what the log says of an odd entry


@contextmanager
def again_and_again(act: Callable[[], None], every: float) -> Iterator[None]:
    """`act` at once and then every so many seconds, in a thread; what it raises is raised at the end."""
    over = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
            while not over.wait(every):
                act()
        except BaseException as error:  # noqa: BLE001 - a thread's main: raised again below
            failed.append(error)

    thread = threading.Thread(target=run, name="attack")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if failed:
        raise failed[0]


def hang_successor(server: RunningServer, role: str, killed: set[int]) -> int:
    """Kill a child and stop the one that follows it, while it loads; the number of the latter. Nobody continues it."""
    victim = server.children(role)[0]
    before = set(server.children(role))
    killed.add(victim)
    os.kill(victim, signal.SIGKILL)
    successor: int = until("a successor", lambda: next(iter(set(server.children(role)) - before), None), every=0.01)
    killed.add(successor)
    with suppress(ProcessLookupError):
        os.kill(successor, signal.SIGSTOP)
        until("it stands still", lambda: stat_of(successor)[0] in ("T", "Z", ""))
    return successor


@contextmanager
def hanging_children(server: RunningServer, killed: set[int]) -> Iterator[None]:
    """Row 8: every 20 s the engine or a worker is killed, and what follows it is stopped while it loads."""
    roles = ["engine", "worker"]

    def act() -> None:
        roles.reverse()
        if server.children(roles[0]):
            hang_successor(server, roles[0], killed)

    with again_and_again(act, 20.0):
        yield
    until("whoever hangs is killed", lambda: all(map(is_gone, killed)), 60)
    until("ready", lambda: server.ready() == 200, 60)


@contextmanager
def removed_root(server: RunningServer, killed: set[int]) -> Iterator[None]:
    """Row 9: the directory is removed every two seconds; each fifth time only the owner's file."""
    turns = iter(range(1 << 30))

    def act() -> None:
        if next(turns) % 5 == 4:
            for path in server.root.glob("*.owner"):
                path.unlink(missing_ok=True)
        else:
            shutil.rmtree(server.root, ignore_errors=True)

    with again_and_again(act, 2.0):
        yield


@contextmanager
def odd_neighbours(server: RunningServer, killed: set[int]) -> Iterator[None]:
    """Row 14: 20,000 dead owners at once, and again when they are swept, and odd entries among them.

    Of each of these the server says one line, however often it sees it.
    """
    root, said = server.root, server.err.count(NO_OWNER)

    def act() -> None:
        if len(os.listdir(root)) < 1000:
            add_dead_owners(root, 20_000)
            add_odd_entries(root)

    try:
        with again_and_again(act, 5.0):
            yield
        until("the dead are swept", lambda: len(os.listdir(root)) < 1000, 60)
        until("each odd entry is told of once", lambda: server.err.count(NO_OWNER) - said == 3)
    finally:
        remove_odd_entries(root)
        sweep(root)  # where this was interrupted


def add_dead_owners(root: Path, n: int) -> None:
    for _ in range(n):
        (root / f"{random.getrandbits(64):016x}.owner").touch(mode=0o600)


def add_odd_entries(root: Path) -> None:
    """A directory, a link and a pipe under names of owner files."""
    with suppress(FileExistsError):
        (root / f"{1:016x}.owner").mkdir()
        (root / f"{2:016x}.owner").symlink_to("/etc/hostname")
        os.mkfifo(root / f"{3:016x}.owner")


def remove_odd_entries(root: Path) -> None:
    with suppress(FileNotFoundError):
        (root / f"{1:016x}.owner").rmdir()
        (root / f"{2:016x}.owner").unlink()
        (root / f"{3:016x}.owner").unlink()
