"""What pytest does for mutants (`-p tests.mutants.plugin`): it tells probes which test runs, what a test costs, or runs
only the tests that a file names, in that file's order."""

import json
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WIDTH = 4096  # bytes of a node id at most, in the file that probes read
_directory = Path(os.environ["MUTANTS_DIRECTORY"])  # where all of this is written
_worker = os.environ.get("PYTEST_XDIST_WORKER", "main")


def _processor_seconds() -> float:
    """Of this process, and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def pytest_configure(config: pytest.Config) -> None:
    path = _directory / f"now.{_worker}"
    path.write_bytes(bytes(WIDTH))
    with path.open("r+b") as file:
        config.stash[_NOW] = mmap.mmap(file.fileno(), WIDTH)


_NOW = pytest.StashKey[Any]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = _directory / "wanted.json"
    if wanted.exists():
        places = {nodeid: i for i, nodeid in enumerate(json.loads(wanted.read_text()))}
        items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    item.config.stash[_NOW][:] = item.nodeid.encode()[:WIDTH].ljust(WIDTH, b"\0")
    spent, begun = _processor_seconds(), time.monotonic()
    found = yield
    cost = {"test": item.nodeid, "cpu": _processor_seconds() - spent, "wall": time.monotonic() - begun}
    with (_directory / f"costs.{_worker}").open("a") as file:
        file.write(json.dumps(cost) + "\n")
    return found
