"""The log of a running server: a reader that stops, and what a child's libraries write past Python."""

import fcntl
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.conftest import Start
from tests.e2e.faults import recovered
from tests.e2e.running import running, until

pytestmark = [pytest.mark.faults, pytest.mark.process]

LINES = 1000  # a pipe holds some 350


def test_a_log_reader_that_stops_freezes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    """Nothing answered after 351 lines, and SIGTERM did nothing. What was not read in time is there later."""
    log = tmp_path / "err.txt"
    os.mkfifo(log)
    reader = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with running(tiny_model, tmp_path / "shm", tmp_path) as server:
            for n in range(LINES):
                assert server.http.get("/nowhere", headers={"x-request-id": f"n-{n}"}).status_code == 404
            assert server.http.get("/health/live").status_code == 200
            assert server.chat({"text": "Hi"}, max_tokens=2).status_code == 200
            assert server.metric("log_lines_dropped_total") == 0, "they wait"
            os.set_blocking(reader, True)
            told = b""
            while f" x_request_id=n-{LINES - 1} ".encode() not in told:
                told += os.read(reader, 1 << 20)
            assert all(f" x_request_id=n-{n} ".encode() in told for n in range(LINES))
            fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
            for _ in range(100):
                server.http.get("/nowhere")
            assert server.stop(seconds=30) == 0
    finally:
        os.close(reader)


def test_what_a_child_writes_past_python_is_in_the_log(start: Start) -> None:
    """The C handler of faulthandler does so, when a library breaks the engine."""
    with start("--log-format", "json") as server:
        os.kill(server.children("engine")[0], signal.SIGSEGV)
        until("its own words", lambda: "Fatal Python error: Segmentation fault" in server.err)
        until("its end", lambda: "ended (SIGSEGV)" in server.err)
        recovered(server)
