"""Whatever befalls one rank, its group ends and is started again as one, and nothing of it is left."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.faults import GREEDY, LONG, SMALL
from tests.e2e.running import RunningServer, children_of, data_url, is_gone, picture, running, until
from tests.ranks.faulty import SAID, faulty, plant

pytestmark = [pytest.mark.ranks, pytest.mark.network]
PULSE_SECONDS = 4.0
READY_SECONDS = 120.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where faults are planted."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's TMPDIR."""
    return tmp_path_factory.mktemp("temporary")


@pytest.fixture(scope="module")
def server(
    shm_root: Path, tmp_path_factory: pytest.TempPathFactory, folder: Path, temporary: Path
) -> Iterator[RunningServer]:
    root = shm_root.with_name(f"{shm_root.name}-deaths")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**faulty(folder), "TMPDIR": str(temporary)}.items():
            patch.setenv(name, value)
        flags = ["--tensor-parallel", "2", "--workers", "1", "--pulse-seconds", str(PULSE_SECONDS)]
        with running(None, root, tmp_path_factory.mktemp("deaths"), *flags) as server:
            yield server
    assert not root.exists() and os.listdir(temporary) == []


def ranks_of(server: RunningServer) -> list[int]:
    """Process ids; rank 0 is started last."""
    others, first = server.children("engine")
    return [first, others]


def right(server: RunningServer) -> str:
    """The text of one chat with a picture."""
    answer = server.chat({"image": SMALL}, {"text": "What is it?"}, **GREEDY)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["text"])


def recovered(server: RunningServer, pids: list[int], expected: str, temporary: Path, begun: float) -> None:
    """Both are others than before, ready in time, and answer as before; nothing is left."""
    until("both ranks are gone", lambda: all(map(is_gone, pids)))
    until("ready again", lambda: server.ready() == 200, READY_SECONDS)
    assert time.monotonic() - begun < READY_SECONDS
    assert not set(ranks_of(server)) & set(pids)
    assert right(server) == expected
    server.assert_nothing_held()
    assert os.listdir(temporary) == []
    assert len(server.children("engine")) == 2


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_signal(server: RunningServer, temporary: Path, rank: int, number: signal.Signals) -> None:
    """Requests inside are told, by their id; the log has where both ranks were."""
    expected, pids, told = right(server), ranks_of(server), len(server.err)
    with ThreadPoolExecutor(3) as pool:
        inside = [pool.submit(server.chat, {"text": f"Hi {i}"}, **LONG) for i in range(3)]
        until("they are computed", lambda: server.metric("num_requests_running") == 3)
        begun = time.monotonic()
        os.kill(pids[rank], number)
        for answer in [one.result() for one in inside]:
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (503, "engine_died")
            assert answer.headers["x-request-id"] in error["message"]
    recovered(server, pids, expected, temporary, begun)
    said = server.err[told:]
    if number == signal.SIGSTOP:
        assert "hangs (silent for" in said and "it is stopped" in said
        assert "all_reduce" in said or "collectives.py" in said or "link.py" in said, "where the other one waits"
    elif rank:
        assert f"SIGKILL of engine rank 1, process {pids[1]}" in said


@pytest.mark.parametrize(
    ("rank", "place"), [(0, "decode"), (1, "decode"), (0, "encode"), (1, "encode"), (1, "load"), (1, "collective")]
)
def test_an_error(server: RunningServer, folder: Path, temporary: Path, rank: int, place: str) -> None:
    expected, pids, told = right(server), ranks_of(server), len(server.err)
    begun = time.monotonic()
    plant(folder, rank, place, "error")
    if place == "load":  # the next ones come to it
        os.kill(pids[0], signal.SIGKILL)
    else:
        fresh = {"image": data_url(picture(90, 60, seed=time.monotonic_ns()))}
        answer = server.chat(fresh, **GREEDY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    until("it was told", lambda: SAID in server.err[told:], READY_SECONDS)
    recovered(server, pids, expected, temporary, begun)
    assert server.err[told:].count(SAID) == 1, "the other rank does not complain"


@pytest.mark.parametrize(
    ("rank", "place", "fault"),
    [(1, "encode", "SIGKILL"), (0, "encode", "SIGSTOP"), (1, "load", "SIGKILL"), (1, "load", "SIGSTOP"),
     (0, "collective", "SIGKILL"), (1, "collective", "SIGSTOP")],
)  # fmt: skip
def test_a_signal_at_a_place(
    server: RunningServer, folder: Path, temporary: Path, rank: int, place: str, fault: str
) -> None:
    expected, pids = right(server), ranks_of(server)
    begun = time.monotonic()
    plant(folder, rank, place, fault)
    if place == "load":
        os.kill(pids[0], signal.SIGKILL)
    else:
        answer = server.chat({"image": data_url(picture(90, 60, seed=time.monotonic_ns()))}, **GREEDY)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_died")
    recovered(server, pids, expected, temporary, begun)


def test_the_server_is_killed(shm_root: Path, tmp_path: Path) -> None:
    """All ranks end with it, and none leaves anything."""
    root = shm_root.with_name(f"{shm_root.name}-killed")
    with running(None, root, tmp_path, "--tensor-parallel", "2", "--workers", "1") as server:
        pids = children_of(server.pid)
        assert len(server.children("engine")) == 2
        server.process.kill()
        until("all are gone", lambda: all(map(is_gone, pids)), 20)
        until("nothing is left", lambda: not root.exists(), 20)


def test_a_drain(shm_root: Path, tmp_path: Path) -> None:
    """SIGTERM: who is inside gets its answer."""
    root = shm_root.with_name(f"{shm_root.name}-drained")
    with (
        running(None, root, tmp_path, "--tensor-parallel", "2", "--workers", "1") as server,
        ThreadPoolExecutor(1) as pool,
    ):
        asked: dict[str, Any] = {**LONG, "max_tokens": 150}
        inside = pool.submit(server.chat, {"text": "Hi"}, **asked)
        until("it is computed", lambda: server.metric("num_requests_running") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert inside.result().status_code == 200
        assert server.process.wait(30) == 0 and not root.exists()
