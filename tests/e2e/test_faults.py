"""Processes that die or hang: every request ends with an answer, and nothing of it stays."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.broken_device import SAID, breakable
from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, LARGE, LONG, SHOWN, SMALL, LongStream, in_order, later, recovered, shown, tokens
from tests.e2e.running import RunningServer, children_of, data_url, is_gone, picture, running, stat_of, until

pytestmark = [pytest.mark.faults, pytest.mark.process]
Servers = Iterator[RunningServer]


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str], Path]:
    return breakable(tmp_path_factory.mktemp("device"))


@pytest.fixture(scope="module")
def pair_server(start: Start, device: tuple[dict[str, str], Path]) -> Servers:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in device[0].items():
            patch.setenv(name, value)
        with start("--max-seqs", "2") as server:
            yield server


@pytest.fixture
def pair(pair_server: RunningServer) -> Servers:
    """Two workers, two places in a batch, and a device that can break. Shared: what is killed is started again, until
    the last test ends it.
    """
    yield from in_order(pair_server)


@pytest.fixture(scope="module")
def patient_server(start: Start) -> Servers:
    with start("--workers", "1", "--max-pixels", "200704", "--pulse-seconds", "60", "--encoder-cache", "off") as server:
        yield server


@pytest.fixture
def patient(patient_server: RunningServer) -> Servers:
    """One worker that may be silent for a minute, and writes what it is sent again once more. Shared."""
    yield from in_order(patient_server)


@pytest.fixture(scope="module")
def hasty_server(start: Start) -> Servers:
    with start("--workers", "1", "--pulse-seconds", "2") as server:
        yield server


@pytest.fixture
def hasty(hasty_server: RunningServer) -> Servers:
    """One worker, and whoever is silent for two seconds is killed. Shared."""
    yield from in_order(hasty_server)


def test_a_worker_killed_in_mid_job_costs_nobody_an_answer(pair: RunningServer) -> None:
    """It is stopped first, so that its job is surely unfinished when it dies. The other one takes the job over."""
    restarts = pair.metric('child_restarts_total{role="worker"}')
    expected = pair.chat({"image": SMALL}, **GREEDY).json()["text"]
    first = pair.children("worker")[0]
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(8) as pool:
        answers = [later(pool, pair, {"image": SMALL}) for _ in range(6)]
        until("a worker took a job and the others went on", lambda: sum(answer.done() for answer in answers) == 5)
        os.kill(first, signal.SIGKILL)
        assert [answer.result().json()["text"] for answer in answers] == [expected] * 6
    assert pair.metric('child_restarts_total{role="worker"}') == restarts + 1
    until("two workers again", lambda: pair.metric('children_up{role="worker"}') == 2)
    recovered(pair)


def test_workers_killed_while_they_write_leave_nothing(patient: RunningServer) -> None:
    """Again and again one dies with leases out; the bytes in shared memory stay what one such request needs."""
    pictures = [{"image": data_url(picture(1600, 1200, i, "JPEG"))} for i in range(12)]
    with ThreadPoolExecutor(4) as pool:
        expected = patient.chat(*pictures, **GREEDY).json()["text"]
        patient.assert_nothing_held()  # the answer may be here before the request's path file is gone
        size = patient.nbytes()
        assert 6 << 20 < size < 7 << 20, "what one request needs: nothing else has been here before"
        for _ in range(2):
            answer = later(pool, patient, *pictures)
            until("leases are out", lambda: len(patient.leased_names()) == 13, every=0.002)
            os.kill(patient.children("worker")[0], signal.SIGKILL)
            assert answer.result().json().get("text") == expected, "one retry on the next worker"
            recovered(patient)
            assert patient.nbytes() == size
        answer = later(pool, patient, *pictures)
        for role in ("worker", "picture_worker"):  # which takes the second attempt
            until("leases are out", lambda: len(patient.leased_names()) == 13, every=0.002)
            os.kill(patient.children(role)[0], signal.SIGKILL)
            until("they are taken back", lambda: not patient.leased_names(), every=0.002)
        assert answer.result().status_code == 500
        assert answer.result().json()["error"]["code"] == "worker_died"
        recovered(patient)


def test_an_engine_killed_in_mid_stream(pair: RunningServer) -> None:
    """Those inside get one error event or a 503; those that wait for a place are answered after the restart."""
    with ThreadPoolExecutor(8) as pool:
        expected = pair.chat({"image": SMALL}, **GREEDY).json()["text"]
        stream = LongStream(pair, {"image": SMALL})
        body = {"inputs": [{"text": "Hi"}], "parameters": LONG}
        inside = pool.submit(lambda: httpx.post(f"{pair.url}/chat", json=body, timeout=60))
        until("both are inside", lambda: pair.metric("num_requests_running") == 2)
        queued = [later(pool, pair, {"image": SMALL}) for _ in range(3)]
        until("three wait", lambda: pair.metric('num_requests_waiting{place="place"}') == 3)
        pair.ready()  # the connection is open
        os.kill(pair.children("engine")[0], signal.SIGKILL)
        until("not ready", lambda: pair.ready() == 503, every=0.01)
        assert pair.http.get("/health/live").status_code == 200
        events = stream.ended()
        assert stream.status == 200 and sum("error" in event for event in events) == 1 and "error" in events[-1]
        assert events[-1]["error"]["code"] == "engine_died" and "[DONE]" not in stream.text
        refused = inside.result()
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_died"
        assert refused.headers["x-request-id"] in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        assert [answer.result().json()["text"] for answer in queued] == [expected] * 3
        recovered(pair)


def test_a_device_that_breaks_ends_its_engine(pair: RunningServer, device: tuple[dict[str, str], Path]) -> None:
    """In an encoder, whose other errors cost one request: here all that are inside end, and the next is answered."""
    restarts = pair.metric('child_restarts_total{role="engine"}')
    (engine,) = pair.children("engine")
    expected = pair.chat({"image": SMALL}, **GREEDY).json()["text"]
    stream = LongStream(pair)
    device[1].touch()
    refused = pair.chat({"image": data_url(picture(92, 61))}, **GREEDY)  # which is encoded
    assert not device[1].exists(), "the device broke"
    assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_died"
    assert refused.headers["x-request-id"] in refused.json()["error"]["message"]
    assert SAID not in refused.text and stream.ended()[-1]["error"]["code"] == "engine_died"
    until("it has ended, though a driver's thread has not", lambda: is_gone(engine))
    recovered(pair)
    assert pair.chat({"image": SMALL}, **GREEDY).json()["text"] == expected
    assert pair.metric('child_restarts_total{role="engine"}') == restarts + 1
    assert SAID in pair.err


def test_requests_in_preparation_outlive_the_engine(patient: RunningServer) -> None:
    """One has its leases and is half written, one waits for the worker: both get their tokens from the next engine."""
    pictures = [{"image": data_url(picture(1600, 1200, i, "JPEG"))} for i in range(12)]
    video: Any = {"video": [SMALL] * 4}  # no other worker takes it
    with ThreadPoolExecutor(2) as pool:
        expected = [tokens(patient.chat(*inputs, **SHOWN)) for inputs in (pictures, [video])]
        worker, engine = patient.children("worker")[0], patient.children("engine")[0]
        first = pool.submit(lambda: httpx.post(f"{patient.url}/chat", json=shown(*pictures), timeout=60))
        until("leases are out", lambda: len(patient.leased_names()) == 13, every=0.002)
        os.kill(worker, signal.SIGSTOP)
        try:
            second = pool.submit(lambda: httpx.post(f"{patient.url}/chat", json=shown(video), timeout=60))
            until("the other waits", lambda: patient.metric('num_requests_waiting{place="worker"}') == 1)
            os.kill(engine, signal.SIGKILL)
            until("not ready", lambda: patient.ready() == 503, every=0.01)
            until("ready again", lambda: patient.ready() == 200)
            # Whatever is prepared is answered by now: this one came later.
            assert patient.chat({"text": "Hi"}, **GREEDY).status_code == 200
            assert not first.done() and not second.done()
            assert patient.children("worker") == [worker] and len(patient.leased_names()) == 13
        finally:
            os.kill(worker, signal.SIGCONT)
        assert [tokens(answer.result()) for answer in (first, second)] == expected
        recovered(patient)


def test_an_engine_that_hangs_is_killed_and_replaced(hasty: RunningServer) -> None:
    stream = LongStream(hasty)
    engine = hasty.children("engine")[0]
    os.kill(engine, signal.SIGSTOP)
    assert "error" in stream.ended()[-1]
    assert is_gone(engine)
    recovered(hasty)


def test_a_worker_that_hangs_is_killed_and_its_job_is_done_by_another(hasty: RunningServer) -> None:
    with ThreadPoolExecutor(2) as pool:
        worker = hasty.children("worker")[0]
        os.kill(worker, signal.SIGSTOP)
        answer = later(pool, hasty, {"image": SMALL})
        assert answer.result().status_code == 200
        assert is_gone(worker)
        recovered(hasty)


def test_no_worker_is_not_ready(hasty: RunningServer) -> None:
    hasty.ready()
    os.kill(hasty.children("worker")[0], signal.SIGKILL)
    until("not ready", lambda: hasty.ready() == 503, every=0.005)
    recovered(hasty)


def test_a_stopped_child_does_not_keep_a_killed_server_from_being_swept(
    tiny_model: Path, shm_root: Path, tmp_path: Path
) -> None:
    """The kernel continues it when the server dies, so that it sees that, lets go of the memory and ends."""
    root = shm_root.with_name(f"{shm_root.name}-stopped")
    with running(tiny_model, root, tmp_path / "a") as server:
        assert server.chat({"image": LARGE}, **GREEDY).status_code == 200
        assert server.nbytes() > 1 << 20
        children = server.children("worker") + server.children("engine")
        stopped = (server.children("worker")[0], server.children("engine")[0])
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            until("they stand still", lambda: all(stat_of(pid)[0] == "T" for pid in stopped))
            os.kill(server.pid, signal.SIGKILL)
            server.process.wait()
            until("the children are gone", lambda: all(map(is_gone, children)))
            until("nothing is left", lambda: not root.exists())
        finally:
            for pid in (pid for pid in stopped if not is_gone(pid)):
                os.kill(pid, signal.SIGKILL)


# ---- two of the shared servers end with one of these


def test_a_server_killed_takes_its_children_along(pair_server: RunningServer) -> None:
    """The last child sweeps. The next start finds a clean directory."""
    stream = LongStream(pair_server, {"image": LARGE})
    children = children_of(pair_server.pid)
    assert len(children) == 5
    os.kill(pair_server.pid, signal.SIGKILL)
    pair_server.process.wait()
    until("the children are gone", lambda: all(map(is_gone, children)))
    until("nothing is left", lambda: not pair_server.root.exists())
    assert stream.ended()[-1]["finish_reason"] is None and stream.broken


def test_what_is_killed_all_at_once_is_swept_by_the_next_start(
    hasty_server: RunningServer, tiny_model: Path, tmp_path: Path
) -> None:
    """As a container runtime kills: stopped first, no child can sweep."""
    server, root = hasty_server, hasty_server.root
    assert server.chat({"image": LARGE}, **GREEDY).status_code == 200
    pids = (*children_of(server.pid), server.pid)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    server.process.wait()
    until("all are gone", lambda: all(map(is_gone, pids)))
    assert any(path.stat().st_size > 1 << 20 for path in root.iterdir()), "the leak was planted"
    with running(tiny_model, root, tmp_path / "b") as server:
        assert server.nbytes() == 0
        assert server.metric("shm_swept_bytes_total") > 1 << 20
    assert not root.exists()
