"""Clients that leave, memory that is full or gone, and servers that are told to end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import GREEDY, LARGE, LONG, SMALL, LongStream, chat_body, in_order, later, recovered
from tests.e2e.running import NAME, RunningServer, data_url, is_gone, picture, until
from tests.e2e.test_logs import ID, found
from tests.hostile.clients import connected, posted, say

pytestmark = [pytest.mark.faults, pytest.mark.process]
Servers = Iterator[RunningServer]
ERROR = re.compile(r" error=(\w+)")
DRAINS_LONG = ("--drain-seconds", "600")  # longer than any test


@pytest.fixture(scope="module")
def usual_server(start: Start) -> Servers:
    with start() as server:
        yield server


@pytest.fixture
def usual(usual_server: RunningServer) -> Servers:
    """Two workers, and no setting but the defaults. Shared by tests of which each may use more memory than the last."""
    yield from in_order(usual_server)


@pytest.fixture(scope="module")
def small_tmpfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """4 MiB of shared memory that may be filled without harm to anybody."""
    mount = tmp_path_factory.mktemp("tmpfs")
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mount]).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield mount
    subprocess.run(["umount", mount], check=True)


@pytest.fixture(scope="module")
def narrow_server(start: Start, small_tmpfs: Path) -> Servers:
    with start("--encoder-cache", "off", root=small_tmpfs / "root") as server:
        yield server


@pytest.fixture
def narrow(narrow_server: RunningServer) -> Servers:
    """A server whose segments lie there. Shared; the first test must find it without any."""
    yield from in_order(narrow_server)


def test_a_file_system_that_others_have_filled(narrow: RunningServer, small_tmpfs: Path) -> None:
    others = small_tmpfs / "others"
    others.write_bytes(bytes(3 << 20))
    full = narrow.chat({"image": LARGE}, **GREEDY)
    assert full.status_code == 429 and full.json()["error"]["code"] == "memory_full"
    others.unlink()
    assert narrow.chat({"image": LARGE}, **GREEDY).status_code == 200
    recovered(narrow)


def test_shared_memory_that_is_full(narrow: RunningServer) -> None:
    """Asked for 1 GiB on 4 MiB: what can never fit is told so, what does not fit now comes back, and nothing dies."""
    with ThreadPoolExecutor(8) as pool:
        children = narrow.children("worker") + narrow.children("engine")
        answers = [later(pool, narrow, {"image": LARGE}) for _ in range(6)]
        statuses = [answer.result().status_code for answer in answers]
        assert set(statuses) <= {200, 429} and 200 in statuses
        never = later(pool, narrow, *[{"image": LARGE}] * 3).result()
        assert never.status_code == 400 and never.json()["error"]["code"] == "media_too_large"
        assert narrow.children("worker") + narrow.children("engine") == children
        recovered(narrow)


def test_a_bad_parameter_beside_pictures_touches_no_memory(usual: RunningServer) -> None:
    answer = usual.chat(*[{"image": SMALL}] * 20, max_tokens=4, temperature=-1)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "parameters.temperature"
    bad = usual.chat(*[{"image": SMALL}] * 20, {"image": "data:image/png;base64,AAAA"})
    assert bad.status_code == 400 and bad.json()["error"]["param"] == "inputs[20].image"
    assert usual.metric('shm_segments{state="idle"}') == 0 == usual.metric('shm_segments{state="leased"}')
    usual.assert_nothing_held()


def test_memory_does_not_grow_whatever_is_killed(usual: RunningServer) -> None:
    """Once as many requests have run at once as ever will, the bytes stay the same."""
    chat = [{"image": data_url(picture(700, 500, i, "JPEG"))} for i in range(2)]
    with ThreadPoolExecutor(4) as pool:
        sizes = []
        for turn in range(4):
            answers = [later(pool, usual, *chat) for _ in range(4)]
            if turn:
                role = ("worker", "engine")[turn % 2]
                os.kill(usual.children(role)[0], signal.SIGKILL)
            assert {answer.result().status_code for answer in answers} <= {200, 500, 503}
            recovered(usual)
            if turn:
                sizes.append(usual.nbytes())
        need = 4 * 2 * (36 * 50 * 588 + 8192)
        assert max(sizes) <= need


def test_a_client_that_leaves_frees_everything(usual: RunningServer) -> None:
    aborted = 'request_success_total{finished_reason="abort"}'
    before = usual.metric(aborted)
    with httpx.stream("POST", f"{usual.url}/chat", json=chat_body({"image": LARGE}, stream=True)) as answer:
        chunks = answer.iter_raw()
        next(chunks)
    until("aborted in the stream", lambda: usual.metric("num_requests_running") == 0)
    with contextlib.closing(connected(usual.url)) as sock:
        say(sock, posted("/chat", chat_body()))
        until("it runs", lambda: usual.metric("num_requests_running") == 1)
    until("aborted before an answer", lambda: usual.metric("num_requests_running") == 0)
    for _ in range(5):  # while it is prepared
        with pytest.raises(httpx.ReadTimeout):
            patience = httpx.Timeout(60, read=0.05)
            httpx.post(f"{usual.url}/chat", json=chat_body(*[{"image": LARGE}] * 8), timeout=patience)
    recovered(usual)
    assert usual.metric(aborted) >= before + 2


def test_an_engine_that_dies_with_its_server_does_not_hinder_the_sweep(usual_server: RunningServer) -> None:
    """Dying, it holds the owner's lock a moment longer than the workers need to see that the server is gone.

    The shared server ends with it.
    """
    server = usual_server
    assert server.chat({"image": LARGE}, **GREEDY).status_code == 200
    os.kill(server.children("engine")[0], signal.SIGKILL)
    os.kill(server.pid, signal.SIGKILL)
    server.process.wait()
    until("nothing is left", lambda: not server.root.exists())


def ends_at_once(server: RunningServer, number: int) -> None:
    """An idle server, at a signal: it does not wait for as long as it may drain."""
    assert server.chat({"image": LARGE}, **GREEDY).status_code == 200
    children = server.children("worker") + server.children("engine")
    assert server.stop(number) == 0
    assert all(map(is_gone, children)) and not server.root.exists()


def test_a_segment_deleted_before_prefill_fails_its_request_alone(start: Start) -> None:
    """And Ctrl-C ends the server at once."""
    with start("--max-seqs", "1", *DRAINS_LONG) as server, ThreadPoolExecutor(2) as pool:
        stream = LongStream(server)
        answer, other = later(pool, server, {"image": LARGE}), later(pool, server, {"text": "Hi"})
        until("both wait", lambda: server.metric('num_requests_waiting{place="place"}') == 2)
        segments = [name for name in server.leased_names() if NAME.fullmatch(name)]
        assert len(segments) == 1
        (server.root / segments[0]).unlink()
        os.kill(server.children("engine")[0], signal.SIGKILL)  # ends the long stream
        stream.ended()
        assert answer.result().status_code == 503
        error = answer.result().json()["error"]
        assert error["code"] == "media_unavailable" and segments[0] not in answer.result().text
        assert other.result().status_code == 200
        assert segments[0] not in server.err
        recovered(server)
        ends_at_once(server, signal.SIGINT)


def test_a_server_stopped_for_a_while_does_not_kill_its_children(start: Start) -> None:
    """What they said meanwhile is unread, not unsaid. And SIGTERM ends the server at once."""
    with start("--pulse-seconds", "2", *DRAINS_LONG) as server:
        before = server.children("worker") + server.children("engine")
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(3)
        os.kill(server.pid, signal.SIGCONT)
        time.sleep(1)
        assert server.children("worker") + server.children("engine") == before
        recovered(server)
        ends_at_once(server, signal.SIGTERM)


def test_sigterm_drains(start: Start) -> None:
    """What runs may end, what comes is refused, and readiness says so."""
    with start(*DRAINS_LONG) as server, ThreadPoolExecutor(2) as pool:
        body = {"inputs": [{"text": "Hi"}], "parameters": {**LONG, "max_tokens": 3000}}
        answer = pool.submit(lambda: httpx.post(f"{server.url}/chat", json=body, timeout=60))
        until("it runs", lambda: server.metric("num_requests_running") == 1)
        os.kill(server.pid, signal.SIGTERM)
        until("not ready", lambda: server.ready() == 503)
        head = server.http.head("/health/ready")
        assert head.status_code == 503 and head.content == b"" and int(head.headers["retry-after"]) >= 1
        refused = server.chat({"text": "Hi"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "stopping"
        assert answer.result().status_code == 200 and answer.result().json()["usage"]["completion_tokens"] == 3000
        assert server.process.wait(60) == 0


def test_an_answer_is_written_to_its_end_in_a_drain(start: Start) -> None:
    """Its last token is made: eight times the log-probabilities of a long prompt take a while to write."""
    prompt = [5 + n % 200 for n in range(1000)]
    body = {"prompt": prompt, "echo": True, "logprobs": 20, "max_tokens": 1, "n": 8}
    with start(*DRAINS_LONG) as server, ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: httpx.post(f"{server.url}/v1/completions", json=body, timeout=60))
        until("it is computed", lambda: server.metric("iteration_tokens_sum") >= 1000)
        os.kill(server.pid, signal.SIGTERM)
        assert answer.result().status_code == 200 and len(answer.result().json()["choices"]) == 8
        assert server.process.wait(60) == 0


def test_a_drain_that_runs_out_of_time_tells_the_client_and_the_log(start: Start) -> None:
    with start("--drain-seconds", "0.3") as server, ThreadPoolExecutor(2) as pool:
        streams = [LongStream(server) for _ in range(3)]
        answer = pool.submit(lambda: httpx.post(f"{server.url}/chat", json=chat_body({"image": SMALL}), timeout=60))
        until("all run", lambda: server.metric("num_requests_running") == 4)
        os.kill(server.pid, signal.SIGTERM)
        told = [stream.ended()[-1]["error"] for stream in streams]
        assert [error["code"] for error in told] == ["stopping"] * 3
        assert answer.result().status_code == 503
        assert server.process.wait(60) == 0
    ids = [found(ID, error["message"]) for error in (*told, answer.result().json()["error"])]
    lines = [line for line in server.err.splitlines() if "error=stopping" in line]
    assert len(lines) == 4 and all(" ERROR " in line for line in lines)
    assert [sum(f"POST /chat {status} " in line for line in lines) for status in (200, 503)] == [3, 1]
    assert all(request_id in "\n".join(lines) for request_id in ids)


def test_a_second_signal_ends_a_drain_and_tells_whom_it_can(start: Start) -> None:
    """Who reads has an error event. Who does not is not waited for; the log has the line of each, and no traceback."""
    with start(*DRAINS_LONG) as server, unread_stream(server):
        streams = [LongStream(server, {"image": SMALL}), LongStream(server)]
        children = server.children("worker") + server.children("engine")
        os.kill(server.pid, signal.SIGTERM)
        until("it drains", lambda: server.ready() == 503)
        until("it says so", lambda: "stopping: 3 requests" in server.err)
        os.kill(server.pid, signal.SIGTERM)
        assert server.process.wait(60) == 0
        assert all(map(is_gone, children)) and not server.root.exists()
        assert [stream.ended()[-1]["error"]["code"] for stream in streams] == ["stopping"] * 2
    lines = [line for line in server.err.splitlines() if "POST /chat 200 " in line]
    assert sorted(found(ERROR, line) for line in lines) == ["stopping"] * 3
    assert all(" ERROR " in line for line in lines) and "Traceback" not in server.err


@contextmanager
def unread_stream(server: RunningServer) -> Iterator[None]:
    """A client that asks for a long answer and reads nothing of it, until much of it waits for it."""
    long = {**LONG, "max_tokens": 6000, "n": 8, "logprobs": True, "top_logprobs": 20}  # as many as one answer may list
    body = json.dumps(chat_body(stream=True) | {"parameters": long})
    head = f"POST /chat HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        sock.connect((urlsplit(server.url).hostname, urlsplit(server.url).port))
        sock.sendall(f"{head}\r\n\r\n{body}".encode())
        until("it answers", lambda: server.metric("iteration_tokens_sum") > 2500)
        yield


def test_a_signal_while_the_model_loads_ends_the_server(start: Start) -> None:
    with start(wait=False) as server:
        until("it has begun", lambda: server.children("engine"))
        assert server.stop(signal.SIGTERM) == 0
