"""The engine's end of form_process.py: it starts that process, has it fork, and hears how its children ended."""

import socket
import subprocess
import sys
import weakref
from pathlib import Path

from configs.settings import REPO, child_env
from model.engine.sampling.form_messages import ENDED, NUMBER

_ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class Forker:
    """Made by the first form. Raises OSError where the machine has no process."""

    def __init__(self, checkpoint: Path, vocab_size: int, most_bytes: int) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            # It ends when this end is closed, which the death of this process does, too.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "model.engine.sampling.form_process", str(checkpoint), str(vocab_size),
                 str(most_bytes), str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), cwd=REPO, env=child_env(_ENVIRONMENT),
            )  # fmt: skip
        self._control.setblocking(False)
        self.descriptor = self._control.fileno()
        self.close = weakref.finalize(self, _end, self._control, self._process)

    def fork(self, number: int, at: int) -> socket.socket | None:
        """The link to a new child; None: there is no time for one now. at: descriptor of the file that it writes to."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            try:
                socket.send_fds(self._control, [NUMBER.pack(number)], [theirs.fileno(), at])
            except BlockingIOError:
                ours.close()
                return None
            except OSError:
                pass  # it has ended, and is about to be heard of
        return ours

    def ended(self) -> list[tuple[int, int]] | None:
        """(number, exit code) of children that have ended; None: it has itself."""
        found: list[tuple[int, int]] = []
        while True:
            try:
                message = self._control.recv(ENDED.size)
            except BlockingIOError:
                return found
            except ConnectionResetError:
                return None
            if not message:
                return None
            found.append(ENDED.unpack(message))


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    control.close()
    process.wait()
