"""Where each thread of a child is: the child offers its stacks by a signal, and the server reads them.

The child's C handler writes them, so they come also while one call holds the interpreter or never returns. They lie in
a file in memory that the server finds among the child's descriptors. A stack names files, lines and functions, and no
value of any of them.
"""

import asyncio
import contextlib
import faulthandler
import os
import signal
from pathlib import Path

NAME = "pixelferry-stacks"
SIGNAL = signal.SIGUSR1
MOST_SECONDS = 2.0  # a process that wrote nothing by then is stopped, or inside the kernel
LOOK_SECONDS = 0.05
QUIET_LOOKS = 3  # so many looks in a row that find nothing new: the handler has written all
STATES = {"T": "it is stopped", "D": "it waits inside the kernel", "R": "it runs", "S": "it sleeps"}


def offer_stacks() -> None:
    """Write the stacks of all threads of this process whenever SIGNAL comes. To be called once, at its start."""
    faulthandler.register(SIGNAL, file=os.memfd_create(NAME), all_threads=True)


async def stacks_of(pid: int) -> str:
    """The stacks of a child that is not reaped yet, or why there are none."""
    path = _file_of(pid)
    if path is None:
        return f"no stacks: process {pid} does not offer any"
    try:
        text = await _asked(pid, path)
    except OSError as error:
        return f"no stacks: {error.strerror}"
    return text.decode("utf-8", "replace").rstrip() or f"no stacks: the process does not answer ({_state(pid)})"


async def _asked(pid: int, path: Path) -> bytes:
    """What the process writes when it is asked now."""
    with path.open("rb", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        os.kill(pid, SIGNAL)
        text, quiet, waited = b"", 0, 0.0
        while quiet < QUIET_LOOKS and waited < MOST_SECONDS:
            await asyncio.sleep(LOOK_SECONDS)
            waited += LOOK_SECONDS
            file.seek(before)
            known, text = text, file.read()
            quiet = quiet + 1 if text and text == known else 0
    return text


def _file_of(pid: int) -> Path | None:
    """None for a process that has not come to offer_stacks(): the signal would end it."""
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(path).startswith(f"/memfd:{NAME}"):
                    return path
    return None


def _state(pid: int) -> str:
    """What the kernel says of its main thread, in words."""
    try:
        letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "it is gone"
    return STATES.get(letter, f"its state is {letter}")
