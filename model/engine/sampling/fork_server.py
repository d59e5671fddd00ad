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
from model.engine.sampling.form_messages import CHILD_MESSAGE_BYTES, NONE, ChildNews, ChildRequest, FormStart
from shm import Stillness

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
        self._n_sent = self._n_taken = 0  # requests
        self._stillness = Stillness(self._process.pid)
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
            with ExitStack() as unless_sent:
                unless_sent.enter_context(ours)
                ours.setblocking(False)
                if not self._send(ChildRequest(number, forks=True), theirs.fileno(), file):
                    return None
                unless_sent.pop_all()
        return ours, at

    def kill(self, number: int) -> bool:
        """End a child, if it is there. Whether there was time to say so."""
        try:
            return self._send(ChildRequest(number, forks=False))
        except OSError:  # the machine has no memory now
            return False

    def _send(self, request: ChildRequest, *descriptors: int) -> bool:
        """Whether there was time for it. Raises OSError, as where too many descriptors are on their way."""
        try:
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], descriptors)
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            return True  # it has ended, and all children with it: that is about to be heard of
        self._n_sent += 1
        return True

    def news(self) -> list[ChildNews] | None:
        """None: it has itself ended."""
        found: list[ChildNews] = []
        while True:
            try:
                message = self._control.recv(CHILD_MESSAGE_BYTES)
            except BlockingIOError:
                return found
            except ConnectionResetError:
                return None
            if not message:
                return None
            found.append(msgspec.msgpack.decode(message, type=ChildNews))
            self._n_taken = found[-1].n_taken
            self._stillness.reset()

    def hangs(self, now: float) -> bool:
        """Whether it does nothing, and has something to do."""
        if self._n_taken == self._n_sent:
            self._stillness.reset()
            return False
        return self._stillness.look(now)


def _end(control: socket.socket, process: "subprocess.Popen[bytes]") -> None:
    """Its children end with it, and one that is stopped ends by this alone."""
    control.close()
    process.kill()
    process.wait()


def form_file(start: FormStart, words: int, stack: ExitStack) -> tuple[int, np.ndarray]:
    """A descriptor of a form's file, which the stack closes, and its mask, int32 [words]. Raises OSError."""
    return _in_memory(bytes(4 * words) + msgspec.msgpack.encode(start), words, stack)


def _in_memory(content: bytes, words: int, stack: ExitStack) -> tuple[int, np.ndarray]:
    file = stack.enter_context(open(os.memfd_create("pixelferry-form", os.MFD_CLOEXEC), "w+b"))
    file.write(content)
    file.flush()
    return file.fileno(), np.frombuffer(mmap.mmap(file.fileno(), 4 * words), np.int32)
