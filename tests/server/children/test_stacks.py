"""Real processes that hang: what each thread does can be read from outside, whatever holds the interpreter."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from server.children import stacks
from server.children.stacks import stacks_of

pytestmark = pytest.mark.process

REPO = Path(__file__).resolve().parents[3]
OFFERS = """
import threading
from server.children.stacks import offer_stacks
offer_stacks()
def other_thread(): threading.Event().wait()
threading.Thread(target=other_thread, daemon=True).start()
"""
HOLDS_THE_INTERPRETER = OFFERS + "def hangs_here(secret): print(flush=True); sum(range(1 << 60))\nhangs_here('secret')"


@contextmanager
def process(script: str) -> "Iterator[subprocess.Popen[bytes]]":
    """One that has printed a line by now."""
    process = subprocess.Popen([sys.executable, "-c", script], cwd=REPO, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None and process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_call_that_holds_the_interpreter_is_named() -> None:
    with process(HOLDS_THE_INTERPRETER) as child:
        first, second = asyncio.run(stacks_of(child.pid)), asyncio.run(stacks_of(child.pid))
    for text in (first, second):  # what one call found is not found again
        assert text.count("in hangs_here") == 1 and text.count("in other_thread") == 1
        assert "secret" not in text


def test_a_stopped_process_is_called_that(monkeypatch: pytest.MonkeyPatch) -> None:
    with process(HOLDS_THE_INTERPRETER) as child:
        os.kill(child.pid, signal.SIGSTOP)
        os.waitpid(child.pid, os.WUNTRACED)
        monkeypatch.setattr(stacks, "MOST_SECONDS", 0.5)
        text = asyncio.run(stacks_of(child.pid))
    assert text == "no stacks: the process does not answer (it is stopped)"


def test_one_that_offers_none_is_left_alone() -> None:
    with process("import time; print(flush=True); time.sleep(60)") as child:
        assert asyncio.run(stacks_of(child.pid)) == f"no stacks: process {child.pid} does not offer any"
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.2)
