"""A child's stderr in the server's log: whole lines, in bounded parts, to the last one."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from server.children import stderr_relay as relay
from server.children.stderr_relay import StderrRelay

pytestmark = pytest.mark.process

# As a C library writes, past sys.stderr.
FROM_C = "import ctypes; ctypes.CDLL(None).write(2, b'from C\\n', 7)"


def relayed(script: str, until: Callable[[str], bool], capsys: pytest.CaptureFixture[str], close: bool = True) -> str:
    """What is told of a process that runs `script`."""
    told = ""

    async def run() -> None:
        nonlocal told
        process = subprocess.Popen([sys.executable, "-Sc", script], stderr=subprocess.PIPE, bufsize=0)
        assert process.stderr is not None
        one = StderrRelay(process.stderr, asyncio.get_running_loop())
        try:
            async with asyncio.timeout(60):
                while not until(told):
                    await asyncio.sleep(0.01)
                    told += capsys.readouterr().err
                while process.poll() is None:  # it may wait for who reads its pipe
                    await asyncio.sleep(0.01)
        finally:
            process.wait()
            one.close()
            one.close()
        told += capsys.readouterr().err
        assert process.stderr.closed

    asyncio.run(run())
    return told


def test_what_a_library_writes_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert relayed(FROM_C, lambda told: "\n" in told, capsys) == "from C\n"


def test_lines_stay_whole_and_the_last_one_gets_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    script = (
        "import os, time\n"
        "for part in (b'one, ', b'and its rest\\ntwo', b', and what is left without an end'):\n"
        "    os.write(2, part); time.sleep(0.05)"
    )
    told = relayed(script, lambda told: "rest" in told, capsys)
    assert told == "one, and its rest\ntwo, and what is left without an end\n"


def test_a_flood_is_told_to_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    script = "import sys\nfor n in range(50_000): sys.stderr.write(f'line {n}\\n')"
    told = relayed(script, lambda told: "line 49999\n" in told, capsys)
    assert told.splitlines() == [f"line {n}" for n in range(50_000)]


def test_a_line_without_end_is_told_in_parts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "MOST_LINE", 100_000)
    script = "import os\nfor _ in range(100): os.write(2, b'x' * 10_000)"
    told = relayed(script, lambda told: len(told) > 800_000, capsys)
    assert told.count("x") == 1_000_000 and max(map(len, told.splitlines())) <= 100_000 + relay.AT_ONCE


def test_a_process_that_is_left_behind_holds_nothing_open(capsys: pytest.CaptureFixture[str]) -> None:
    """It has the pipe's other end, so that no end of file comes."""
    script = "import os, subprocess\nsubprocess.Popen(['sleep', '5'])\nos.write(2, b'last words')"
    assert relayed(script, lambda told: True, capsys) == "last words\n"
    subprocess.run(["pkill", "-x", "-P", str(os.getpid()), "sleep"])
