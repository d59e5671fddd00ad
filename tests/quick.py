"""`make quick` (`-p tests.quick`): the tests that start no process and build no model, and proof that they do not.

A file whose tests are all marked `process` or `network`, or with a mark of a proof of CI's, is not even imported. A
test that starts a process all the same fails, and says which mark it lacks.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

LEFT_OUT = (
    "process", "network", "slow", "faults", "families", "matrix", "ranks", "served", "training", "long", "npu", "pages",
    "ray",
)  # fmt: skip
WHOLE_FILE = re.compile(rf"^pytestmark = .*\bpytest\.mark\.(?:{'|'.join(LEFT_OUT)})\b", re.MULTILINE)
STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"}  # CPython's own audit events


class _Guard:
    """Python cannot take an audit hook off again, so one looks for as long as the process lives."""

    def __init__(self) -> None:
        self.in_a_test = False

    def look(self, event: str, args: tuple[Any, ...]) -> None:
        if self.in_a_test and event in STARTS:
            raise AssertionError(f"{event} in `make quick`: the test starts a process, so it needs the mark `process`")


_KEY = pytest.StashKey[_Guard]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_KEY] = guard = _Guard()
    sys.addaudithook(guard.look)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """True: no test of this file is run, so it is not imported."""
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    return True if WHOLE_FILE.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    taken = [item for item in items if not any(item.get_closest_marker(name) for name in LEFT_OUT)]
    config.hook.pytest_deselected(items=[item for item in items if item not in set(taken)])
    items[:] = taken


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    guard = item.config.stash[_KEY]
    guard.in_a_test = True
    try:
        return (yield)
    finally:
        guard.in_a_test = False
