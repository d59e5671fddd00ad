"""What a process takes of the machine, by the kernel's word."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from server.usage import ProcessUsage, usage_of
from tests.e2e.running import until

BUSY = "a = bytearray(64 << 20); f = [open('/dev/null') for _ in range(50)]\nwhile True: pass"


@pytest.mark.process
def test_memory_time_and_files_of_a_process() -> None:
    process = subprocess.Popen([sys.executable, "-c", BUSY])
    try:
        until("it spends time", lambda: usage_of(process.pid).cpu_seconds >= 0.3)
        found = usage_of(process.pid)
        assert 64 << 20 <= found.resident_bytes < 256 << 20 and 50 <= found.open_files < 70
    finally:
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        ended = usage_of(process.pid)
        process.wait()
    assert ended.cpu_seconds >= found.cpu_seconds and (ended.resident_bytes, ended.open_files) == (0, 0)
    assert usage_of(process.pid) == ProcessUsage(), "there is no such process"


def test_to_look_at_a_process_costs_little() -> None:
    """The page of metrics looks at each child, on the loop."""
    pid, begun = os.getpid(), time.process_time()
    for _ in range(100):
        usage_of(pid)
    assert (time.process_time() - begun) / 100 < 0.002, len(list(Path(f"/proc/{pid}/fd").iterdir()))
