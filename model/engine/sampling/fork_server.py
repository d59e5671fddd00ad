"""The engine's end of form_process.py: it starts that process, has it fork, and hears how its children ended."""

import mmap
import os
import socket
import subprocess
import sys
import weakref
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from configs.settings import REPO, child_env
from model.engine.sampling.form_messages import ENDED, NONE, NUMBER, FormStart

_ENVIRONMENT = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}


class ForkServer:
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

    def fork(self, number: int) -> tuple[socket.socket, np.ndarray] | None:
        """The link to a new child, and int32 [1], the slot of the form that it is at. Raises OSError.

        None: there is no time for one now.
        """
        with ExitStack() as stack:
            file, at = _in_memory(NONE.to_bytes(4, sys.byteorder, signed=True), 1, stack)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(theirs)
            ours.setblocking(False)
            try:
                socket.send_fds(self._control, [NUMBER.pack(number)], [theirs.fileno(), file])
            except BlockingIOError:
                ours.close()
                return None
            except OSError:
                pass  # it has ended, and is about to be heard of
        return ours, at

    def kill(self, number: int) -> bool:
        """End a child, if it is there. Whether there was time to say so."""
        try:
            self._control.send(NUMBER.pack(number))
        except BlockingIOError:
            return False
        except OSError:
            pass  # it has ended, and all of them with it
        return True

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


def form_file(start: FormStart, words: int, stack: ExitStack) -> tuple[int, np.ndarray]:
    """A descriptor of a form's file, which the stack closes, and its mask, int32 [words]. Raises OSError."""
    return _in_memory(bytes(4 * words) + msgspec.msgpack.encode(start), words, stack)


def _in_memory(content: bytes, words: int, stack: ExitStack) -> tuple[int, np.ndarray]:
    file = stack.enter_context(open(os.memfd_create("pixelferry-form", os.MFD_CLOEXEC), "w+b"))
    file.write(content)
    file.flush()
    return file.fileno(), np.frombuffer(mmap.mmap(file.fileno(), 4 * words), np.int32)
