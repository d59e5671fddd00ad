"""Children that hang while they load and shared memory that is removed: others are answered, and nothing is held."""

import itertools
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, SMALL, in_order, later, recovered
from tests.e2e.running import RunningServer, children_of, data_url, is_gone, picture, until
from tests.hostile.child_attacks import (
    NO_OWNER,
    add_dead_owners,
    add_odd_entries,
    hang_successor,
    hanging_children,
    odd_neighbours,
    remove_odd_entries,
    removed_root,
)
from tests.hostile.conftest import Held
from tests.hostile.loop_block import loop_of
from tests.hostile.measure import MORE_SECONDS, Attack

pytestmark = pytest.mark.process

Servers = Iterator[RunningServer]
BLOCK_SECONDS = 0.05  # of processor time: what the loop may do at a stretch
SERVER_BYTES = 256 << 20  # of these servers, whose bodies are small
CHATS = 12
FRESH = (data_url(picture(90, 60, seed)) for seed in itertools.count(1))  # pictures that no cache has


@pytest.fixture(scope="module")
def lone_server(start: Start) -> Servers:
    with start("--workers", "1", "--pulse-seconds", "2", "--wait-seconds", "1") as server:
        yield server


@pytest.fixture
def lone(lone_server: RunningServer) -> Servers:
    """One worker, and nobody waits for a child for more than a second. Shared: the last test ends it."""
    yield from in_order(lone_server)


def test_row_8_who_waits_for_a_child_that_hangs_is_told(lone: RunningServer) -> None:
    """It is killed for its silence, and the next one answers. Pictures alone have a worker beside it."""
    killed: set[int] = set()
    with loop_of(lone.url, lone.pid) as block, ThreadPoolExecutor(CHATS) as pool:
        hung = hang_successor(lone, "worker", killed)
        answers = [later(pool, lone, {"video": [SMALL, SMALL]}) for _ in range(CHATS)]
        seen = [answer.result() for answer in answers]
        until("it is killed", lambda: is_gone(hung))
        recovered(lone)
    assert {answer.status_code for answer in seen} == {503}
    assert {answer.json()["error"]["code"] for answer in seen} == {"workers_down"}
    assert all("retry-after" in answer.headers for answer in seen)
    assert f"worker process {hung} hangs (silent for" in lone.err and "while it loads" in lone.err
    block.assert_within(BLOCK_SECONDS)


def test_row_9_a_removed_directory_costs_no_chat(lone: RunningServer) -> None:
    """It is made again for the next picture. One that is not private is a 503 for media, and says so to a router."""
    assert lone.chat({"image": next(FRESH)}, **GREEDY).status_code == 200
    with loop_of(lone.url, lone.pid) as block:
        for _ in range(3):
            lone.assert_nothing_held()  # a lease that is given back has another name
            shutil.rmtree(lone.root)
            assert lone.chat({"image": next(FRESH)}, **GREEDY).status_code == 200
        lone.assert_nothing_held()
        assert lone.ready() == 200 and lone.err.count("was removed under this server") == 3
        lone.root.chmod(0o755)
        refused = lone.chat({"image": next(FRESH)}, **GREEDY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shm_gone")
        assert lone.chat({"text": "Hi"}, **GREEDY).status_code == 200
        state = lone.http.get("/health/ready")
        assert (state.status_code, state.json()["status"]) == (503, "shm_gone")
        lone.root.chmod(0o700)
        assert lone.chat({"image": next(FRESH)}, **GREEDY).status_code == 200 and lone.ready() == 200
    assert "Traceback" not in lone.err
    block.assert_within(BLOCK_SECONDS)


def test_a_server_killed_after_its_directory_was_made_again_leaves_nothing(lone_server: RunningServer) -> None:
    """Its children hold the lock of what was removed, and sweep what came after it all the same."""
    shutil.rmtree(lone_server.root)
    assert lone_server.chat({"image": next(FRESH)}, **GREEDY).status_code == 200
    children = children_of(lone_server.pid)
    os.kill(lone_server.pid, signal.SIGKILL)
    lone_server.process.wait()
    until("the children are gone", lambda: all(map(is_gone, children)))
    until("nothing is left", lambda: not lone_server.root.exists())


# ---- at full scale


@pytest.mark.long
def test_row_8_at_full_scale(start: Start, held: Held) -> None:
    with start("--pulse-seconds", "5", "--wait-seconds", "10") as server:
        attack = Attack(
            name="row 8 hanging children", go=hanging_children, memory_bytes=SERVER_BYTES, may=frozenset({503}),
            deadline=10 + MORE_SECONDS,
        )  # fmt: skip
        held(server, attack)
        assert "Traceback" not in server.err


@pytest.mark.long
def test_row_9_at_full_scale(start: Start, held: Held) -> None:
    with start() as server:
        attack = Attack(
            name="row 9 removed directory", go=removed_root, memory_bytes=SERVER_BYTES, may=frozenset({503})
        )
        held(server, attack)
        assert "Traceback" not in server.err


@pytest.mark.long
def test_row_14_at_full_scale(start: Start, held: Held) -> None:
    with start() as server:
        held(server, Attack(name="row 14 odd neighbours", go=odd_neighbours, memory_bytes=SERVER_BYTES))
        assert "Traceback" not in server.err


@pytest.mark.long
def test_row_14_odd_entries_do_not_keep_a_server_from_starting(start: Start, shm_root: Path) -> None:
    """Nor do 20,000 dead owners, which it sweeps."""
    root = shm_root.with_name(f"{shm_root.name}-odd")
    root.mkdir(mode=0o700)
    add_dead_owners(root, 20_000)
    add_odd_entries(root)
    with start(root=root) as server:
        until("it says so", lambda: server.err.count(NO_OWNER) == 3)
        assert len(list(root.glob("*.owner"))) == 4, "its own, and those that are none"
        remove_odd_entries(root)
        assert server.stop(seconds=10) == 0
