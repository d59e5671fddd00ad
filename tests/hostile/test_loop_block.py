"""A loop that is blocked is seen, from within and from outside; one that only waits is not."""

import asyncio
import subprocess
import sys
import time

import pytest

from tests.hostile.loop_block import Longest, loop_of, own_loop

pytestmark = pytest.mark.process

SPIN_SECONDS = 0.15
SERVER = """
import asyncio, sys, time

async def answer(reader, writer):
    global n
    while await reader.readuntil(b"\\r\\n\\r\\n"):
        n += 1
        end = time.thread_time() + (float(sys.argv[1]) if n == 20 else 0.0)
        while time.thread_time() < end:
            pass
        if n == 21:
            time.sleep(0.2)
        writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: 2\\r\\n\\r\\nok")

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.Event().wait()

n = 0
asyncio.run(main())
"""


def spin(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@pytest.mark.parametrize("seconds", [0.0, SPIN_SECONDS])
def test_from_within(seconds: float) -> None:
    async def run() -> Longest:
        async with own_loop() as longest:
            await asyncio.sleep(0.02)
            spin(seconds)
            await asyncio.to_thread(spin, 0.05)  # another thread's work is not the loop's
        return longest

    longest = asyncio.run(run())
    assert longest.turns > 10 and seconds <= longest.seconds < seconds + 0.04


@pytest.mark.parametrize("seconds", [0.0, SPIN_SECONDS])
def test_from_outside(seconds: float) -> None:
    """The loop computes in its 20th answer, and sleeps in its 21st: that is no work, but the machine's own business."""
    process = subprocess.Popen([sys.executable, "-c", SERVER, str(seconds)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        with loop_of(f"http://127.0.0.1:{process.stdout.readline().strip()}", process.pid) as longest:
            while longest.turns < 30 and process.poll() is None:
                time.sleep(0.01)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert longest.turns >= 30 and seconds - 0.01 <= longest.seconds < seconds + 0.04


def test_what_was_never_looked_at_is_not_good() -> None:
    with pytest.raises(AssertionError, match="never looked at"):
        Longest().assert_within(0.05)
    longest = Longest()
    longest.saw(0.06)
    with pytest.raises(AssertionError, match=r"0\.060 s"):
        longest.assert_within(0.05)
