"""What tests of shared memory stand on: roots that must be empty afterwards, small disks, and processes."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shm import Owner
from shm.segment import create_file, fresh_name
from tests import leaks

REPO = Path(__file__).parents[2]
Spawn = Callable[..., "subprocess.Popen[str]"]


def put(owner: Owner, nbytes: int = 8192) -> str:
    """A listed segment."""
    name = fresh_name(owner.root)
    owner.record(name)
    os.close(create_file(owner.root / name, nbytes))
    return name


def left_in(root: Path) -> list[str]:
    """What lies in a root, by kind; a root of which no owner is left must not even exist."""
    return leaks.problems_in(root) + ([f"{root.name} itself"] if root.exists() and not leaks.names_in(root) else [])


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """A root for one test, which must leave nothing in it."""
    path = tmp_path / "root"
    yield path
    assert left_in(path) == []


@pytest.fixture
def owner(root: Path) -> Iterator[Owner]:
    """A live owner under `root`, closed after the test."""
    claimed = Owner.claim(root)
    yield claimed
    claimed.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 2 MiB, all of whose space must be free again after the test."""
    path = tmp_path / "disk"
    path.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(path)], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"mounting a tmpfs is not permitted here: {done.stderr.strip()}")
    try:
        yield path
        assert used_bytes(path) == 0
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def used_bytes(disk: Path) -> int:
    """Bytes in use on the file system of `disk`."""
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.fixture
def spawn() -> Iterator[Spawn]:
    """Start `python -c code args...`, which tells by lines on stdout how far it is. The test's end kills it."""
    children: list[subprocess.Popen[str]] = []

    def start(code: str, *args: object, pass_fds: tuple[int, ...] = ()) -> "subprocess.Popen[str]":
        child = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, args)],
            cwd=REPO,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=pass_fds,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.kill()
        with child:
            child.wait()


def line_of(child: "subprocess.Popen[str]") -> str:
    """The next line that a child prints; fails, instead of waiting for ever, when it hangs."""
    assert child.stdout is not None
    timer = threading.Timer(30, child.kill)
    timer.start()
    try:
        return child.stdout.readline().strip()
    finally:
        timer.cancel()
