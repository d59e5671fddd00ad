"""Forms of answers in the engine: a process for each client's fills their masks, and a step waits for these so long.

A step's masks cost what its forms do, and a form may be an attack. So a mask that is not ready keeps its row waiting a
step, and not the step; and a form that takes too long over one ends with its process, which is its own client's alone.
"""

import hashlib
import logging
import mmap
import os
import select
import signal
import socket
import sys
import time
from array import array
from collections import OrderedDict
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from model.engine.plan import FailureCode, RequestError
from model.engine.sampling.forker import Forker
from model.engine.sampling.form_messages import (
    MESSAGE_BYTES,
    MOST_BEGUN,
    NO_CHILD,
    NONE,
    FormAsk,
    FormSaid,
    FormStart,
    mask_words,
)
from model.engine.sampling.logits_processors import BITS
from model.engine.scheduling.fair_shares import Holdings, ServiceClocks
from tokenization.chat.grammar import CompiledGrammar

CODE: FailureCode = "structured_output"
MAX_REMEMBERED = 1024  # forms whose steps were too expensive
_TOO_EXPENSIVE = "a step of it takes too much processor time"
_START_SECONDS = 0.01  # that a form is expected to take to its first mask, and each token of it that was drawn already
_REPLAY_SECONDS = 0.0001
_STEP_SECONDS = 0.001  # that its first step behind that is
_LEAST_BYTES = 1 << 20  # that one which gave way is thought to have held
_ROOM_SHARE = 8  # of all that forms may hold, an eighth is free beside that before it begins again

_log = logging.getLogger("pixelferry")


class AnswerForm:
    """Where one answer stands in its grammar. A process knows it while its sequence runs: `begin`, `end`."""

    def __init__(
        self, forms: "Forms", grammar: CompiledGrammar, ends: tuple[int, ...], client: int, digest: bytes
    ) -> None:
        """ends: ids that end the answer."""
        self.forms, self.grammar, self.ends, self.client, self.digest = forms, grammar, ends, client, digest
        self.taken = array("i")  # tokens of the answer, without its end
        self.error: RequestError | None = None  # why it cannot go on
        self.filled = False  # its mask is that of its next token
        self.mask = np.zeros(0, np.int32)  # int32 [mask_words], which the process fills
        self.process: _Process | None = None
        self.slot = NONE  # in the process
        self.n_sent = 0  # of `taken`, what the process was sent
        self.waits = False  # until the process is asked for the next mask
        self.asked = False  # it has not answered yet
        self.starts = False  # what it was asked for is the first mask
        self.expected = 0.0  # processor seconds that its next step is expected to take
        self.needed = 0  # bytes that it held before it gave way

    @property
    def accepts_nothing(self) -> bool:
        """Whether an answer without a token fits."""
        return self.grammar.accepts_nothing

    @property
    def ready(self) -> bool:
        """Whether its next token can be drawn, or it is known that none can."""
        return self.filled or self.error is not None

    def fresh(self) -> "AnswerForm":
        """The same for another answer to this prompt, that has no token yet."""
        return AnswerForm(self.forms, self.grammar, self.ends, self.client, self.digest)

    def begin(self) -> None:
        """Its sequence runs."""
        self.forms.begin(self)

    def end(self) -> None:
        """Its sequence runs no more. One that was preempted replays its tokens when it runs again."""
        self.forms.end(self)

    def add(self, token: int) -> None:
        """What the form does not take leaves the next mask empty."""
        if token not in self.ends:
            self.taken.append(token)
            self.filled = False
            self.forms.ask(self)

    def write_mask(self, out: np.ndarray) -> None:
        """int32 [words]: bit i is id i."""
        out[:] = self.mask[: len(out)]
        end = self.forms.vocab_size
        if self.mask.item(end >> 5) >> (end & 31) & 1:
            if end >> 5 < len(out):
                out[end >> 5] &= ~BITS[end & 31]
            for token in self.ends:
                out[token >> 5] |= BITS[token & 31]

    def refusal(self, excluded: Collection[int], allowed: Collection[int]) -> RequestError | None:
        """Why the answer got no token, if its form and its request's rules are why.

        excluded: ids that those rules or the model take away; allowed: all that they leave, where that is not all.
        """
        if self.error is not None:
            return self.error
        mask = np.empty(-(-self.forms.vocab_size // 32), np.int32)
        self.write_mask(mask)
        left = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()) - set(excluded)
        if left and (not allowed or left & set(allowed)):
            return None
        return RequestError("the form of the answer and the request's other rules leave no token", CODE)


class _Process:
    """The engine's end of one client's process."""

    def __init__(self, client: int, number: int, link: socket.socket, at: np.ndarray) -> None:
        """at: int32 [1]: the slot of the form that it is at."""
        self.client, self.number, self.link, self.at = client, number, link, at
        self.descriptor = link.fileno()
        self.forms: dict[int, AnswerForm] = {}  # by slot, in the order in which they began here
        self.n_slots = 0
        self.ended: list[int] = []  # slots, which it has not been told yet
        self.nbytes = 0  # that it holds
        self.n_asked = 0  # messages that it was sent
        # What gave way, what the process held before, and the number of the message that tells it so.
        self.given: tuple[AnswerForm, int, int] | None = None


class Forms:
    """The forms of all answers that run. Masks are asked for client by client; one thread calls everything."""

    def __init__(self, checkpoint: Path, vocab_size: int, step_seconds: float, nbytes: int) -> None:
        """vocab_size: rows of the logits; nbytes: that all forms may hold together.

        step_seconds: what a step waits for masks, and the processor time of all that are asked for at once.
        """
        self.vocab_size = vocab_size
        self._checkpoint, self._step_seconds = checkpoint, step_seconds
        self._held: Holdings[int] = Holdings(nbytes)  # by client
        self._clocks: ServiceClocks[int] = ServiceClocks()  # processor seconds
        self._forker: Forker | None = None
        self._poll = select.poll()
        self._live: dict[AnswerForm, None] = {}  # those of sequences that run
        self._n_processes = 0
        self._processes: dict[int, _Process] = {}  # by client
        self._by_number: dict[int, _Process] = {}
        self._by_link: dict[int, _Process] = {}  # by descriptor: those that have not closed their end
        self._waiting: list[AnswerForm] = []  # whose next mask nobody was asked for
        self._asked_seconds = 0.0  # what those that were asked for are expected to take
        self._expensive: OrderedDict[bytes, None] = OrderedDict()  # digests

    @property
    def n_running(self) -> int:
        """Forms whose sequences run."""
        return len(self._live)

    def hold(self, grammar: CompiledGrammar, ends: tuple[int, ...], client: int = 0, salt: bytes = b"") -> AnswerForm:
        """ends: ids that end the answer; salt: of those who may learn from each other's forms.

        Raises RequestError for a form whose steps were too expensive before.
        """
        digest = hashlib.sha256(salt + grammar.source.encode()).digest()
        if digest in self._expensive:
            raise _not_held(_TOO_EXPENSIVE)
        ends = tuple(token for token in ends if 0 <= token < self.vocab_size)
        return AnswerForm(self, grammar, ends, client, digest)

    def begin(self, form: AnswerForm) -> None:
        self._live[form] = None
        self._clocks.enter(form.client)
        self.ask(form)

    def end(self, form: AnswerForm) -> None:
        """Whatever it has, it has no more."""
        if form not in self._live:
            return
        del self._live[form]
        self._leave(form)
        if form.waits:
            form.waits = False
            self._waiting.remove(form)
        self._clocks.leave(form.client)

    def ask(self, form: AnswerForm) -> None:
        """Its next mask is wanted."""
        if form.error is None and not form.waits:
            form.waits = True
            self._waiting.append(form)

    def turn(self) -> None:
        """Ask for masks, of whoever took least so far first, as many as are expected to take what a step may wait."""
        if not self._waiting:
            return
        seconds = self._asked_seconds
        if seconds + sum([_expectation(form) for form in self._waiting]) > self._step_seconds:
            self._waiting.sort(key=lambda form: self._clocks[form.client])
        asks: dict[_Process, list[AnswerForm]] = {}
        for form in self._waiting:
            expected = _expectation(form)
            if form.error is not None:
                form.waits = False
            elif not form.asked and (not seconds or seconds + expected <= self._step_seconds) and self._has_room(form):
                try:
                    process = form.process or self._process_of(form.client)
                except OSError as error:
                    self._lose([form], error)
                    continue
                if process is None:
                    break
                asks.setdefault(process, []).append(form)
                seconds += expected
        for process in self._processes.values():
            if process.given is not None and process.ended:
                asks.setdefault(process, [])
        for process, forms in asks.items():
            self._send(process, forms)
        for process in [one for one in self._processes.values() if not one.forms]:
            self._close(process)  # what it was opened for did not get through to it
        self._waiting = [form for form in self._waiting if form.waits]

    def hear(self, seconds: float = 0.0) -> None:
        """Take what the processes say; wait for the first of it so long."""
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if self._forker is not None and descriptor == self._forker.descriptor:
                self._hear_forker(self._forker)
            elif (process := self._by_link.get(descriptor)) is not None:
                self._hear_process(process)

    def wait(self) -> None:
        """Where no sequence can go on before its mask: for something to be said, as long as a step may wait."""
        self.turn()
        self.hear(self._step_seconds)

    def fill(self, forms: Sequence[AnswerForm], out: np.ndarray) -> list[int]:
        """The masks of these forms, int32 [n, words]. -> which are late, and empty; an empty one else cannot go on."""
        until = time.monotonic() + self._step_seconds
        left = 0.0
        while True:
            self.turn()
            self.hear(left)
            late = [i for i, form in enumerate(forms) if not form.ready]
            left = until - time.monotonic()
            if not late or left <= 0:
                break
        for i, form in enumerate(forms):
            if form.filled and form.error is None:
                form.write_mask(out[i])
            else:
                out[i] = 0
        return late

    def _has_room(self, form: AnswerForm) -> bool:
        """Of one that gave way: for what it held then, and so much more that it does not do so again at once."""
        if form.process is not None or form.needed == 0 or not self._processes:
            return True
        process = self._processes.get(form.client)
        if process is not None and process.given is not None:
            return False  # it has not said yet what that was
        return self._held.room(form.needed + self._held.capacity / _ROOM_SHARE)

    def _process_of(self, client: int) -> "_Process | None":
        """Opened where there is none; None: there is no time for one now."""
        if (process := self._processes.get(client)) is not None:
            return process
        if self._forker is None:
            self._forker = Forker(self._checkpoint, self.vocab_size, int(self._held.capacity))
            self._poll.register(self._forker.descriptor, select.POLLIN)
        with open(os.memfd_create("pixelferry-form", os.MFD_CLOEXEC), "w+b") as file:
            file.write(NONE.to_bytes(4, sys.byteorder, signed=True))
            file.flush()
            link = self._forker.fork(self._n_processes, file.fileno())
            if link is None:
                return None
            process = _Process(client, self._n_processes, link, np.frombuffer(mmap.mmap(file.fileno(), 4), np.int32))
        self._n_processes += 1
        self._processes[client] = self._by_number[process.number] = self._by_link[process.descriptor] = process
        self._poll.register(link, select.POLLIN)
        return process

    def _send(self, process: _Process, forms: Sequence[AnswerForm]) -> None:
        """What does not get through waits on."""
        stepped = [form for form in forms if form.process is not None]
        begun = [form for form in forms if form.process is None][:MOST_BEGUN]
        slots = list(range(process.n_slots, process.n_slots + len(begun)))
        asked = FormAsk(process.ended, [(form.slot, form.taken[form.n_sent]) for form in stepped], slots)
        with ExitStack() as stack:
            try:
                files = [stack.enter_context(self._file(form)) for form in begun]
                masks = [mmap.mmap(file.fileno(), 4 * mask_words(self.vocab_size)) for file in files]
            except OSError as error:
                return self._lose(begun, error)
            try:
                socket.send_fds(process.link, [msgspec.msgpack.encode(asked)], [file.fileno() for file in files])
            except OSError:  # it has more than it can take now; or it has ended, and is about to be heard of
                return
        for form, slot, mask in zip(begun, slots, masks, strict=True):
            form.expected, form.n_sent, form.starts = _expectation(form), len(form.taken), True
            form.mask, form.slot, form.process = np.frombuffer(mask, np.int32), slot, process
            process.forms[slot] = form
        process.n_asked += 1
        process.n_slots += len(begun)
        process.ended = []
        for form in stepped:
            form.n_sent += 1
        for form in (*stepped, *begun):
            form.waits, form.asked = False, True
            self._asked_seconds += form.expected
            self._clocks.begin(form.client, form.expected)

    def _file(self, form: AnswerForm) -> BinaryIO:
        """As form_messages.py has it."""
        start = FormStart(form.grammar.source, form.grammar.marks, form.taken.tobytes())
        file = open(os.memfd_create("pixelferry-form", os.MFD_CLOEXEC), "w+b")
        file.write(bytes(4 * mask_words(self.vocab_size)) + msgspec.msgpack.encode(start))
        file.flush()
        return file

    def _hear_process(self, process: _Process) -> None:
        try:
            message = process.link.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except ConnectionResetError:
            message = b""
        if not message:  # it has ended: its parent says how
            self._poll.unregister(process.descriptor)
            del self._by_link[process.descriptor]
            return
        said = msgspec.msgpack.decode(message, type=FormSaid)
        if process.given is None or said.n_asked >= process.given[2]:
            self._held.take(process.client, said.nbytes - process.nbytes)
            process.nbytes = said.nbytes
            if process.given is not None:
                (given, before, _), process.given = process.given, None
                given.needed = max(before - said.nbytes, _LEAST_BYTES)
        # Of forms that have left it nothing is heard.
        for form, seconds in [(process.forms[slot], n) for slot, n in said.filled if slot in process.forms]:
            self._answered(form, seconds)
            form.filled = form.n_sent == len(form.taken)
            if not form.filled:
                self.ask(form)
        for form in [process.forms[slot] for slot in said.expensive if slot in process.forms]:
            self._remember(form)
        for form, why in [(process.forms[slot], why) for slot, why in said.failed if slot in process.forms]:
            self._fail(form, RequestError(f"the form of the answer could not be held on: {why}", CODE))
        if not self._held.room(0):
            self._give_way()

    def _hear_forker(self, forker: Forker) -> None:
        ended = forker.ended()
        for number, code in ended or ():
            if (process := self._by_number.get(number)) is not None:
                while process.descriptor in self._by_link:  # what it has said before, and that this is its end
                    self._hear_process(process)
                if number in self._by_number:
                    self._ended(process, code)
        if ended is None:
            _log.error("the process of the forms has ended; those of running answers are lost")
            self._poll.unregister(forker.descriptor)
            forker.close()
            self._forker = None
            for process in tuple(self._by_number.values()):
                for form in tuple(process.forms.values()):
                    self._fail(form, RequestError("the form of the answer is lost: its process ended"))

    def _ended(self, process: _Process, code: int) -> None:
        """The form that it was at is why; its client's others begin again in another one."""
        form = process.forms.get(process.at.item(0))
        if code == NO_CHILD:
            self._lose(tuple(process.forms.values()), "it has no process")
        elif form is None:
            _log.warning("a process of forms has ended with %d: they begin again", code)
        elif code == -signal.SIGPROF:
            self._remember(form)
        elif code == -signal.SIGABRT:
            self._fail(form, self._too_large())
        else:
            _log.error("a process of forms has ended with %d over one of them", code)
            self._fail(form, RequestError("the form of the answer is lost: its process ended"))
        for one in tuple(process.forms.values()):
            self._leave(one)
            self.ask(one)

    def _answered(self, form: AnswerForm, seconds: float) -> None:
        if form.asked:
            form.asked = False
            self._asked_seconds = max(0.0, self._asked_seconds - form.expected)
            self._clocks.end(form.client, seconds, form.expected)
            form.expected, form.starts = (_STEP_SECONDS if form.starts else seconds), False

    def _leave(self, form: AnswerForm) -> None:
        """Its process, which ends with the last form that it has."""
        self._answered(form, form.expected)
        form.filled = False
        process, form.process = form.process, None
        if process is None:
            return
        del process.forms[form.slot]
        process.ended.append(form.slot)
        form.mask, form.slot = np.zeros(0, np.int32), NONE
        if not process.forms:
            self._close(process)

    def _close(self, process: _Process) -> None:
        if self._by_link.pop(process.descriptor, None) is not None:
            self._poll.unregister(process.descriptor)
        process.link.close()
        del self._by_number[process.number], self._processes[process.client]
        self._held.give(process.client, process.nbytes)

    def _fail(self, form: AnswerForm, error: RequestError) -> None:
        form.error = error
        self._leave(form)

    def _lose(self, forms: Sequence[AnswerForm], why: object) -> None:
        _log.error("the machine has no room for the forms of %d answers: %s", len(forms), why)
        for form in forms:
            self._fail(form, RequestError("the form of the answer is lost: the machine has no room for it"))

    def _remember(self, form: AnswerForm) -> None:
        """A form that was ended for its time is not begun again."""
        self._fail(form, _not_held(_TOO_EXPENSIVE))
        self._expensive[form.digest] = None
        if len(self._expensive) > MAX_REMEMBERED:
            self._expensive.popitem(last=False)

    def _give_way(self) -> None:
        """The newest form of the client that holds most waits until there is room for it. One alone has failed."""
        while not self._held.room(0):
            process = max(self._processes.values(), key=lambda one: one.nbytes)
            newest = list(process.forms.values())[-1]
            if len(self._processes) == len(process.forms) == 1:
                self._fail(newest, self._too_large())
                return
            newest.needed = process.nbytes
            if len(process.forms) > 1:  # how much of that it was is known when the process has freed it, and speaks
                process.given = newest, process.nbytes, process.n_asked + 1
                self._held.give(process.client, process.nbytes)
                process.nbytes = 0
            self._leave(newest)
            self.ask(newest)

    def _too_large(self) -> RequestError:
        return _not_held(f"it takes more memory than {int(self._held.capacity) >> 20} MiB")


def _expectation(form: AnswerForm) -> float:
    """Processor seconds of its next step."""
    return form.expected if form.process is not None else _START_SECONDS + _REPLAY_SECONDS * len(form.taken)


def _not_held(why: str) -> RequestError:
    return RequestError(f"the form of the answer cannot be held: {why}", CODE)
