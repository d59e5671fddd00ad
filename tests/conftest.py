"""What every test stands on: one OpenMP thread, a private shared-memory root, and nothing left there after any test."""

import gc
import logging
import os
import secrets
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from server.logs.setup import ACCESS, OURS, SILENCED
from tests.groups import put_in_random_order, put_long_first, scheduling
from tests.leaks import left_behind, roots_of, start_record
from tests.marked import is_left_out, unseen
from tests.quick import LEFT_OUT
from tests.rerun import pytest_terminal_summary

__all__ = ["pytest_terminal_summary"]  # a hook of pytest's

# What is imported and collected is never garbage; looking for some in it took a third of collecting.
gc.disable()
# Small matrices and two cores: a second OpenMP thread only waits. Set before torch is imported anywhere.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Every server that these tests start takes this root (it reads PIXELFERRY_SHM_ROOT, as the tests' subprocesses do), so
# that what lies there is this session's alone, also when other sessions of the same user run on the machine.
SESSION_ROOT = Path(f"/dev/shm/pixelferry-test-{os.getpid()}-{secrets.token_hex(3)}")
LOGGERS = [logging.getLogger(name) for name in (None, *OURS, ACCESS, *SILENCED)]
DEFAULT_ROOT = Path(f"/dev/shm/pixelferry-{os.geteuid()}")
# What an example takes by the clock depends on the neighbours of this process.
settings.register_profile("no deadline", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no deadline")
for _name in [name for name in os.environ if name.startswith("PIXELFERRY_")]:
    del os.environ[_name]  # a developer's own settings must not change what the tests see
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it puts behind itself
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the servers of these tests are to hear it
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each of many servers would compile every module again
os.environ["PIXELFERRY_SHM_ROOT"] = str(SESSION_ROOT)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--hostile", choices=["short", "full"], default="full", help="how long tests/hostile measures")
    parser.addoption("--random-files", type=int, metavar="SEED", help="files in a random order, which this seed tells")
    parser.addoption("--soak-seconds", type=float, default=1200.0, help="how long the soak of caches takes")


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--random-files")
    return None if seed is None else f"random order of files: --random-files {seed}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """True: no test of this file has a mark that is asked for, so it is not imported."""
    return is_left_out(collection_path, config.option.markexpr) or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if missed := unseen(items, LEFT_OUT):
        raise pytest.UsageError("write `mark.NAME` into the file itself, or `-m NAME` misses: " + ", ".join(missed))
    seed: int | None = config.getoption("--random-files")
    if seed is None:
        put_long_first(items)
    else:
        put_in_random_order(items, seed)


def pytest_collection_finish() -> None:
    """What was imported and collected stays: a collection of garbage looks at what tests make, not at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `--dist loadfile`: ours, which keeps files that share a server in one process."""
    return scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(scope="session")
def shm_root() -> Path:
    """The root that servers of this session use unless told otherwise. Not made here: its user makes and removes it."""
    return SESSION_ROOT


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """After every test: no leased segment, no path file; and no file at all where no server lives on."""
    before = start_record(SESSION_ROOT, DEFAULT_ROOT)
    yield
    problems = left_behind(before)
    assert not problems, "left in shared memory: " + "; ".join(problems)


@pytest.fixture(autouse=True, scope="session")
def nothing_left_at_the_end() -> Iterator[None]:
    """After the last test, when every shared server has been stopped: the session's roots are gone."""
    yield
    left = [
        path.relative_to(SESSION_ROOT.parent) for root in roots_of(SESSION_ROOT) for path in [root, *root.iterdir()]
    ]
    for root in roots_of(SESSION_ROOT):
        shutil.rmtree(root, ignore_errors=True)
    assert not left, f"left in shared memory after the last test: {len(left)} files, {left[:4]}"


@pytest.fixture(autouse=True)
def kept_logging() -> Iterator[None]:
    """A test may set logging up as a process does: afterwards it is as it was."""
    before = [(logger, logger.level, logger.handlers[:]) for logger in LOGGERS]
    yield
    logging.captureWarnings(False)
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
