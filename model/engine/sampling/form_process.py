"""The process of forms: it forks one for each client whose answers are held to some, which fills their masks.

Run as `python -m model.engine.sampling.form_process CHECKPOINT VOCAB_SIZE MOST_BYTES CONTROL_FD` by forms.py only; what
passes through the descriptor is in form_messages.py. The grammar's library is a program on a client's data: what it
takes too long over, or too much memory for, ends that client's child alone. The kernel ends it, by the child's own
processor time.
"""

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

import msgspec
import numpy as np
from llguidance import LLMatcher

from configs.checkpoint import Checkpoint
from model.engine.sampling.form_messages import (
    CHILD_MESSAGE_BYTES,
    MESSAGE_BYTES,
    MOST_BEGUN,
    NO_CHILD,
    NONE,
    ChildNews,
    ChildRequest,
    FormReply,
    FormRequest,
    FormStart,
    mask_words,
)
from model.registry import family_of
from tokenization.structured.compile import COMPILE_SECONDS
from tokenization.structured.vocabulary import LIMITS, Effort, GrammarVocabulary
from tokenization.worker_memory import PAGE, bound_growth, return_pages

KILL_SECONDS = 0.04  # of the processor, for taking one token or for one mask; the kernel looks at each of its ticks
CHILD_BYTES = 2 << 20  # that a child has before its forms: pages of its parent's that it has written to
REPLY_SECONDS = 0.001  # after so long a reply tells what is done, before more is
_ANY_PIXELS = 1 << 24  # of a processor whose tokenizer alone is used
_PR_SET_PDEATHSIG = 1  # of prctl(2)


def main(argv: list[str]) -> int:
    checkpoint, vocab_size, most_bytes, control = Checkpoint(Path(argv[0])), *map(int, argv[1:])
    vocabulary = GrammarVocabulary(family_of(checkpoint).processor(checkpoint, _ANY_PIXELS).tokenizer, vocab_size)
    gc.collect()
    gc.freeze()  # or the first collection of every child would write to all of these pages
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it was closed with something unread
        _ForkServer(vocabulary, most_bytes, socket.socket(fileno=control)).serve()
    return 0


class _ForkServer:
    """Forks and ends children, and says which one ended how, until the engine has closed its end."""

    def __init__(self, vocabulary: GrammarVocabulary, most_bytes: int, control: socket.socket) -> None:
        self._vocabulary, self._most_bytes, self._control = vocabulary, most_bytes, control
        self._numbers: dict[int, int] = {}  # of children, by process
        self._n_taken = 0  # requests

    def serve(self) -> None:
        control = self._control.fileno()
        woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # or no number would be written to the pipe
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        while True:
            ready, _, _ = select.select([control, woken], [], [])
            if woken in ready:
                os.read(woken, 1 << 12)
                self._reap()
            if control in ready and not self._take():
                return

    def _take(self) -> bool:
        message, descriptors, _, _ = socket.recv_fds(self._control, CHILD_MESSAGE_BYTES, 2)
        if not message:
            return False
        asked = msgspec.msgpack.decode(message, type=ChildRequest)
        self._n_taken += 1
        if asked.forks:
            self._fork(asked.number, descriptors)
        else:
            for pid in [pid for pid, own in self._numbers.items() if own == asked.number]:
                os.kill(pid, signal.SIGKILL)  # not reaped yet, so that the number is its own
            self._tell(asked.number)
        return True

    def _fork(self, number: int, descriptors: list[int]) -> None:
        """The kernel drops descriptors for which this process has no room."""
        parent = os.getpid()
        try:
            pid = os.fork() if len(descriptors) == 2 else None
        except OSError:
            pid = None
        if pid == 0:
            self._child(parent, *descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid is None:
            self._tell(number, code=NO_CHILD)
        else:
            self._numbers[pid] = number
            self._tell(number, pid=pid)

    def _tell(self, number: int, *, pid: int = 0, code: int | None = None, seconds: float = 0.0) -> None:
        self._control.send(msgspec.msgpack.encode(ChildNews(self._n_taken, number, pid, code, seconds)))

    def _reap(self) -> None:
        while self._numbers:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
            if not pid:
                return
            code, seconds = os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
            self._tell(self._numbers.pop(pid), code=code, seconds=seconds)

    def _child(self, parent: int, link: int, at: int) -> None:
        """Never returns."""
        code, log = 1, 2
        try:
            log = os.dup(2)
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
            if os.getppid() != parent:
                os._exit(0)  # it has ended before
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            bound_growth(self._most_bytes)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # an abort of the library says more than a log should hold
            _Child(self._vocabulary, socket.socket(fileno=link), np.frombuffer(mmap.mmap(at, 0), np.int32)).serve()
            code = 0
        except (BrokenPipeError, ConnectionResetError):
            code = 0  # all of its answers ended meanwhile
        except MemoryError:
            os.abort()  # as the library does
        except BaseException:  # noqa: BLE001 - the process ends here; a panic of the library is no Exception
            os.write(log, traceback.format_exc().encode())
        finally:
            os._exit(code)


class _Child:
    """The forms of one client's answers: tokens come, and masks are filled."""

    def __init__(self, vocabulary: GrammarVocabulary, link: socket.socket, at: np.ndarray) -> None:
        """at: int32 [1], which is shared."""
        self._vocabulary, self._link, self._at = vocabulary, link, at
        self._statm = os.open("/proc/self/statm", os.O_RDONLY)
        self._had = self._resident() - CHILD_BYTES
        self._forms: dict[int, _Form] = {}  # by slot
        self._reply = FormReply(0, 0, [], [], [])
        self._replied = time.monotonic()

    def serve(self) -> None:
        """Until the engine has closed its end."""
        while True:
            message, files, _, _ = socket.recv_fds(self._link, MESSAGE_BYTES, MOST_BEGUN)
            if not message:
                return
            asked = msgspec.msgpack.decode(message, type=FormRequest)
            self._reply = FormReply(self._reply.n_asked + 1, 0, [], [], [])
            for slot in asked.ended:
                self._forms.pop(slot, None)
            if asked.ended:
                return_pages()
            self._replied = time.monotonic()
            for slot, token in asked.stepped:
                if (form := self._forms.get(slot)) is not None:
                    _end_after(KILL_SECONDS)
                    self._at[0] = slot
                    self._note(slot, form, form.take(token))
            self._at[0] = NONE
            if len(files) < len(asked.begun):
                raise OSError(errno.EMFILE, "the kernel has dropped descriptors of forms")
            for slot, file in zip(asked.begun, files, strict=True):
                self._send_reply(if_any=True)  # or what ends this process with the next form would undo it
                _end_after(COMPILE_SECONDS)
                self._at[0] = slot
                began = time.thread_time()
                form = self._forms[slot] = _Form(self._vocabulary, file)
                os.close(file)
                self._note(slot, form, time.thread_time() - began)
            self._at[0] = NONE
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._send_reply()

    def _note(self, slot: int, form: "_Form", seconds: float) -> None:
        """What came of it. That of the next ones does not keep the engine waiting for it."""
        if (why := form.error) is not None:
            self._reply.failed.append((slot, seconds, why))
        elif form.effort.too_much:
            self._reply.expensive.append((slot, seconds))
        else:
            self._reply.filled.append((slot, seconds))
        if time.monotonic() - self._replied > REPLY_SECONDS:
            self._send_reply()

    def _send_reply(self, *, if_any: bool = False) -> None:
        if if_any and not (self._reply.filled or self._reply.expensive or self._reply.failed):
            return
        reply = msgspec.structs.replace(self._reply, nbytes=max(0, self._resident() - self._had))
        self._link.send(msgspec.msgpack.encode(reply))
        self._reply, self._replied = FormReply(reply.n_asked, 0, [], [], []), time.monotonic()

    def _resident(self) -> int:
        """Bytes of its memory that are no file's, those that it shares with its parent among them."""
        fields = os.pread(self._statm, 128, 0).split()
        return (int(fields[1]) - int(fields[2])) * PAGE


class _Form:
    """One answer's: its matcher and its mask."""

    def __init__(self, vocabulary: GrammarVocabulary, file: int) -> None:
        """file: descriptor, as form_messages.py has it."""
        nbytes = 4 * mask_words(vocabulary.vocab_size)
        start = msgspec.msgpack.decode(os.pread(file, os.fstat(file).st_size - nbytes, nbytes), type=FormStart)
        os.ftruncate(file, nbytes)  # memory that no limit of a process counts
        self._mask = np.frombuffer(mmap.mmap(file, nbytes), np.int32)
        self._drawable = np.zeros_like(self._mask)
        self._drawable[: vocabulary.words] = vocabulary.mask(start.marks)
        self._drawable.view(np.uint8)[vocabulary.end >> 3] |= 1 << (vocabulary.end & 7)
        self._address, self._nbytes = self._mask.ctypes.data, self._mask.nbytes
        self.effort = Effort()
        self._matcher = LLMatcher(vocabulary.compiled, start.source, log_level=0, limits=LIMITS)
        for token in np.frombuffer(start.tokens, np.int32).tolist():
            _end_after(KILL_SECONDS)
            self._matcher.consume_token(token)
        _end_after(COMPILE_SECONDS)  # the first mask makes states that the others need no more
        self._fill()

    @property
    def error(self) -> str | None:
        """One line of what the library says, where it cannot go on."""
        if not self._matcher.is_error():
            return None
        return self._matcher.get_error().strip().partition("\n")[0][:200] or "it exceeds its limits"

    def take(self, token: int) -> float:
        """Fill the mask behind it. -> processor seconds

        Of the thread, which is the only one: while a timer counts, the kernel tells those of a process by its ticks.
        """
        began = time.thread_time()
        self._matcher.consume_token(token)
        taken = time.thread_time()
        if taken - began > KILL_SECONDS / 10:
            _end_after(KILL_SECONDS)
        self._fill()
        filled = time.thread_time()
        self.effort.add(taken - began)
        self.effort.add(filled - taken)
        return filled - began

    def _fill(self) -> None:
        self._matcher.unsafe_compute_mask_ptr(self._address, self._nbytes)
        np.bitwise_and(self._mask, self._drawable, out=self._mask)


def _end_after(seconds: float) -> None:
    """The kernel ends this process, when it has taken so much of the processor from now on: SIGPROF has no handler."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
