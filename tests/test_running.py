"""A server that does not start tells the test why: what it said, and what its machine was doing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.running import RunningServer
from tests.server.tables import each_of


@each_of(
    ("then", "words"),
    [
        ("time.sleep(60)", r"not within 1 s: ready\nthe machine's load is \d+\.\d, the server has 0 children"),
        ("sys.exit(3)", r"the server ended with 3:\nthe machine's load is \d+\.\d, the server has 0 children"),
    ],
)
def test_the_error_holds_what_the_server_said(then: str, words: str, tmp_path: Path) -> None:
    out, err = tmp_path / "out", tmp_path / "err"
    program = f"import sys, time; print('loading', flush=True); print('no room', file=sys.stderr, flush=True); {then}"
    with out.open("wb") as out_file, err.open("wb") as err_file:
        process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=out_file, stderr=err_file)
    try:
        with pytest.raises(AssertionError, match=re.compile(rf"{words}\nloading\nno room")):
            RunningServer(process, tmp_path, out, err).wait_ready(1)
    finally:
        process.kill()
        process.wait()
