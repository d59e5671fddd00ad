"""Forms of answers in the engine: a process for each client's fills their masks, and a step waits for these so long.

A step's masks cost what its forms do, and a form may be an attack. So a mask that is not ready keeps its row waiting a
step, and not the step; and a form that takes too long over one ends with its process, which is its own client's alone.
"""

import hashlib
import logging
import select
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import numpy as np

from model.engine.plan import RequestError
from model.engine.sampling.answer_form import CODE, SLOW_SECONDS, AnswerForm, ClientProcess
from model.engine.sampling.fork_server import ForkServer, form_file
from model.engine.sampling.form_messages import (
    MESSAGE_BYTES,
    MOST_BEGUN,
    NO_CHILD,
    NONE,
    ChildNews,
    FormReply,
    FormRequest,
    mask_words,
)
from model.engine.sampling.waited_for import WaitedFor
from model.engine.scheduling.fair_shares import Holdings, ServiceClocks
from shm import Stillness
from tokenization.chat.grammar import CompiledGrammar

MAX_REMEMBERED = 1024  # forms whose steps were too expensive
_TOO_EXPENSIVE = "a step of it takes too much processor time"
MOST_BUSY = 4  # clients whose processes work at once
MOST_STARTING = 2  # of these, clients for which one compiles: that may take seconds
WAIT_SECONDS = 0.05  # where there is nothing but masks to wait for, before others' requests are looked at
MOST_LOST = 3  # processes in a row that end before a form's mask is there, and not over it
ROOM_SECONDS = 30.0  # after which a form that was evicted ends for want of room
_START_SECONDS = 0.01  # that a form is expected to take to its first mask, and each token of it that was drawn already
_REPLAY_SECONDS = 0.0001
_STEP_SECONDS = 0.001  # that its first step behind that is
_LEAST_BYTES = 1 << 20  # that an evicted form is thought to have held
_HARD = 1.5  # times what forms may hold is the most of one process, where the kernel refuses it
_ROOM_SHARE = 8  # of all that forms may hold, an eighth is free beside that before it begins again

_log = logging.getLogger("pixelferry")


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
        self._server: ForkServer | None = None
        self._poll = select.poll()
        self._live: dict[AnswerForm, None] = {}  # those of sequences that run
        self._n_processes = 0
        self._processes: dict[int, ClientProcess] = {}  # by client
        self._by_number: dict[int, ClientProcess] = {}
        self._by_link: dict[int, ClientProcess] = {}  # by descriptor: those that have not closed their end
        self._waiting: list[AnswerForm] = []  # whose next mask is not asked for yet
        self._closed: dict[int, ClientProcess] = {}  # by number: those that were asked for something, until they ended
        self._unkilled: list[int] = []  # numbers of children that must end, and of which there was no time to say so
        self._expensive: OrderedDict[bytes, None] = OrderedDict()  # digests
        self._waits: WaitedFor[int] = WaitedFor(step_seconds)  # by client

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

    def dispatch(self) -> None:
        """Ask those clients' processes that have answered for masks, the client that took least so far first.

        A client is asked for what is expected to take its share of a step's time, or one mask, and for first masks.
        """
        if not self._waiting:
            return
        waiting: dict[int, list[AnswerForm]] = {}
        for form in [form for form in self._waiting if form.waits]:
            waiting.setdefault(form.client, []).append(form)
        share = self._step_seconds / max(1, len(waiting))
        busy = [process for process in self._processes.values() if process.asked]
        n_busy, n_starting = len(busy), sum([process.starts for process in busy])
        for client in waiting if len(waiting) == 1 else sorted(waiting, key=self._clocks.__getitem__):
            process = self._processes.get(client)
            if n_busy >= MOST_BUSY or (process is not None and process.asked):
                continue
            steps = _within(share, [form for form in waiting[client] if form.process is not None])
            starts = [form for form in waiting[client] if form.process is None and self._has_room(form)]
            starts = _within(share, starts)[:MOST_BEGUN] if n_starting < MOST_STARTING else []
            if self._ask_for(client, steps, starts):
                n_busy += 1
                n_starting += bool(starts)
        self._waiting = [form for form in self._waiting if form.waits]

    def _ask_for(self, client: int, steps: Sequence[AnswerForm], starts: Sequence[AnswerForm]) -> bool:
        """Whether the client's process, opened where there is none, was asked for the masks of these."""
        process = self._processes.get(client)
        if process is None and starts:
            try:
                process = self._open(client)
            except OSError as error:
                self._lose(starts, error)
        if process is None or not (steps or starts or (process.evicted and process.ended)):
            return False
        self._send(process, steps, starts)
        if not process.forms:  # what it was opened for did not get through to it
            self._close(process)
            self._note_lost([form for form in starts if form.error is None])
        return bool(process.asked)

    def receive(self, seconds: float = 0.0) -> None:
        """Take the replies of the processes; wait for the first one so long."""
        self._kill()
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if self._server is not None and descriptor == self._server.descriptor:
                self._receive_news(self._server)
            elif (process := self._by_link.get(descriptor)) is not None:
                self._receive_from(process)
        self._end_hung()

    def wait(self) -> None:
        """For the next reply, for a moment: where no sequence can go on before its mask."""
        self.dispatch()
        self.receive(min(self._step_seconds, WAIT_SECONDS))

    def fill(self, forms: Sequence[AnswerForm], out: np.ndarray) -> list[int]:
        """The masks of these forms, int32 [n, words]. -> which are late, and empty; an empty one else cannot go on.

        Those of a client that steps have waited for too much are late where they are not there.
        """
        began = time.monotonic()
        until, free, left = began + self._step_seconds, began + SLOW_SECONDS, 0.0
        while True:
            self.dispatch()
            self.receive(min(left, WAIT_SECONDS))  # one that hangs is looked at meanwhile
            late = [i for i, form in enumerate(forms) if not form.ready]
            missing = {forms[i].client for i in late} if late else set()
            now = time.monotonic()
            left = until - now
            if left <= 0 or not any(not self._waits.owes(client, now) for client in missing):
                break
            self._waits.since(now, missing, free)
        self._waits.over(now)
        for i, form in enumerate(forms):
            if form.filled and form.error is None:
                form.write_mask(out[i])
            else:
                out[i] = 0
        return late

    def _has_room(self, form: AnswerForm) -> bool:
        """For an evicted one: for what it held, and so much more that it is not evicted again at once."""
        if not form.needed or not self._processes:
            return True
        process = self._processes.get(form.client)
        if process is not None and process.evicted is not None:
            return False  # its reply does not tell yet what that was
        if self._held.room(form.needed + self._held.capacity / _ROOM_SHARE):
            return True
        if time.monotonic() - form.evicted_at > ROOM_SECONDS:
            self._fail(form, _not_held("there is no room for it beside those of others"))
        return False

    def _open(self, client: int) -> ClientProcess | None:
        """None: there is no time for one now. Raises OSError."""
        if self._server is None:
            self._server = ForkServer(self._checkpoint, self.vocab_size, int(_HARD * self._held.capacity))
            self._poll.register(self._server.descriptor, select.POLLIN)
        self._n_processes += 1
        if (forked := self._server.fork(self._n_processes)) is None:
            return None
        process = ClientProcess(client, self._n_processes, *forked)
        self._processes[client] = self._by_number[process.number] = self._by_link[process.descriptor] = process
        self._poll.register(process.descriptor, select.POLLIN)
        return process

    def _send(self, process: ClientProcess, steps: Sequence[AnswerForm], starts: Sequence[AnswerForm]) -> None:
        """What does not get through waits on."""
        slots = list(range(process.n_slots, process.n_slots + len(starts)))
        asked = FormRequest(process.ended, [(form.slot, form.taken[form.n_sent]) for form in steps], slots)
        with ExitStack() as stack:
            try:
                files = [form_file(form.start, mask_words(self.vocab_size), stack) for form in starts]
            except OSError as error:
                return self._lose(starts, error)
            try:
                socket.send_fds(process.link, [msgspec.msgpack.encode(asked)], [file for file, _ in files])
            except OSError:  # it has ended, and is about to be heard of
                return
        for form, slot, (_, mask) in zip(starts, slots, files, strict=True):
            form.expected, form.n_sent, form.begun = _expectation(form), len(form.taken), False
            form.mask, form.slot, form.process = mask, slot, process
            process.forms[slot] = form
        process.n_asked, process.n_slots, process.ended = process.n_asked + 1, process.n_slots + len(starts), []
        process.starts = bool(starts)
        for form in steps:
            form.n_sent += 1
        process.asked_at = time.monotonic()
        for form in (*steps, *starts):
            form.waits = False
            process.asked[form.slot] = form.expected
            self._clocks.begin(form.client, form.expected)

    def _receive_from(self, process: ClientProcess) -> bool:
        """Whether there was anything to read: a reply, or its end."""
        try:
            message = process.link.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            message = b""
        if not message:  # it has ended: its parent says how
            self._poll.unregister(process.descriptor)
            del self._by_link[process.descriptor]
        else:
            self._take(process, msgspec.msgpack.decode(message, type=FormReply))
        return True

    def _take(self, process: ClientProcess, reply: FormReply) -> None:
        if process.evicted is None or reply.n_asked >= process.evicted[2]:
            self._held.take(process.client, reply.nbytes - process.nbytes)
            process.nbytes = reply.nbytes
            if process.evicted is not None:
                (evicted, before, _), process.evicted = process.evicted, None
                evicted.needed = max(before - reply.nbytes, _LEAST_BYTES)
        for slot, seconds in (*reply.filled, *reply.expensive, *[(slot, seconds) for slot, seconds, _ in reply.failed]):
            self._answered(process, slot, seconds)
        if process.stillness is not None:
            process.stillness.reset()
        for slot, seconds in reply.filled:
            if (form := process.forms.get(slot)) is None:  # it has left
                continue
            # Steps that take long may stand between such that take none: what took long is forgotten by halves.
            form.expected = max(seconds, form.expected / 2) if form.begun else _STEP_SECONDS
            form.begun, form.n_lost, form.filled = True, 0, form.n_sent == len(form.taken)
            if not form.filled:
                self.ask(form)
        for form in [process.forms[slot] for slot, _ in reply.expensive if slot in process.forms]:
            self._remember(form)
        for form, why in [(process.forms[slot], why) for slot, _, why in reply.failed if slot in process.forms]:
            self._fail(form, RequestError(f"the form of the answer could not be held on: {why}", CODE))
        if not self._held.room(0):
            self._evict_newest()

    def _receive_news(self, server: ForkServer) -> None:
        if (found := server.news()) is None:
            return self._lose_server(server, "has ended")
        for news in found:
            if (process := self._closed.pop(news.number, None) if news.code is not None else None) is not None:
                self._settle(process, news.seconds)
            elif (process := self._by_number.get(news.number)) is not None:
                if news.pid:
                    process.stillness = Stillness(news.pid)
                elif news.code is not None:
                    self._receive_last(process)
                    if news.number in self._by_number:
                        self._ended(process, news)

    def _receive_last(self, process: ClientProcess) -> None:
        """Its last replies, and its end."""
        while process.descriptor in self._by_link and self._receive_from(process):
            pass

    def _end_hung(self) -> None:
        """A process that owes an answer and does nothing for long is killed: its forms begin again in another one."""
        now = time.monotonic()
        for process in self._processes.values():
            if process.asked and process.stillness is not None and process.stillness.look(now):
                _log.error("a process of forms hangs and is killed")
                self._unkilled.append(process.number)
        if self._server is not None and self._server.hangs(now):
            self._lose_server(self._server, "hangs and is killed")

    def _lose_server(self, server: ForkServer, why: str) -> None:
        """Its children end with it, and their forms begin again in those of another one."""
        _log.error("the process of the forms %s: those of %d running answers begin again", why, len(self._live))
        self._poll.unregister(server.descriptor)
        server.close()
        self._server = None
        for process in tuple(self._by_number.values()):
            self._receive_last(process)
            if process.number in self._by_number:
                self._note_lost(tuple(process.forms.values()))
                self._begin_again(process)
        for process in self._closed.values():
            self._settle(process, None)
        self._closed.clear()

    def _ended(self, process: ClientProcess, news: ChildNews) -> None:
        """The form that it was at is why; its client's others begin again in another one."""
        form, code, process.took = process.forms.get(process.at.item(0)), news.code, news.seconds
        if code == NO_CHILD:
            self._lose(tuple(process.forms.values()), "it has no process")
        elif form is None:
            _log.warning("a process of forms has ended with %d: they begin again", code)
            self._note_lost(tuple(process.forms.values()))
        elif code == -signal.SIGPROF:
            self._remember(form)
        elif code == -signal.SIGABRT:
            self._fail(form, self._too_large())
        else:
            _log.error("a process of forms has ended with %d over one of them", code)
            self._fail(form, RequestError("the form of the answer is lost: its process ended"))
        self._begin_again(process)

    def _begin_again(self, process: ClientProcess) -> None:
        """All of its forms, in another one, before such as only begin: those may be what ends it.

        A mask that is there stays, so that each process that ends has brought its forms at least a token further.
        """
        again = dict.fromkeys(process.forms.values())
        for form in again:
            filled, mask = form.filled, form.mask
            self._leave(form)
            form.filled, form.mask, form.waits = filled, mask, not filled
        first = [form for form in again if form.waits]
        self._waiting = [*first, *[form for form in self._waiting if form not in again]]

    def _note_lost(self, forms: Sequence[AnswerForm]) -> None:
        """Their process has ended, over none of them."""
        for form in [form for form in forms if not form.filled]:
            form.n_lost += 1
            if form.n_lost >= MOST_LOST:
                self._fail(form, RequestError(f"the form of the answer is lost: {MOST_LOST} processes of it ended"))

    def _answered(self, process: ClientProcess, slot: int, seconds: float) -> None:
        """seconds: of the processor, that it took."""
        process.charged += seconds
        if (expected := process.asked.pop(slot, None)) is not None:
            self._clocks.end(process.client, seconds, expected)

    def _leave(self, form: AnswerForm) -> None:
        """Its process, which ends with the last form that it has, and else is busy until it has answered."""
        form.filled = False
        process, form.process = form.process, None
        if process is None:
            return
        del process.forms[form.slot]
        process.ended.append(form.slot)
        form.mask, form.slot = np.zeros(0, np.int32), NONE
        if not process.forms:
            self._close(process)

    def _close(self, process: ClientProcess) -> None:
        """Whatever it is at, it ends now."""
        if process.asked:  # what that takes is known when it has ended
            self._clocks.enter(process.client, waits=True)
            self._closed[process.number] = process
        if self._by_link.pop(process.descriptor, None) is not None:
            self._poll.unregister(process.descriptor)
        process.link.close()
        del self._by_number[process.number], self._processes[process.client]
        self._held.give(process.client, process.nbytes)
        self._unkilled.append(process.number)
        self._kill()
        if process.took is not None and self._closed.pop(process.number, None) is not None:
            self._settle(process, process.took)

    def _settle(self, process: ClientProcess, seconds: float | None) -> None:
        """It is gone, and was asked for something. seconds: of the processor, that it took in all, where that is known.

        What it did beside forms is counted with that.
        """
        expected = sum(process.asked.values())
        took = expected if seconds is None else max(0.0, seconds - process.charged)
        self._clocks.end(process.client, took, expected)
        self._clocks.leave(process.client)

    def _kill(self) -> None:
        while self._unkilled and (self._server is None or self._server.kill(self._unkilled[0])):
            del self._unkilled[0]

    def _fail(self, form: AnswerForm, error: RequestError) -> None:
        form.error, form.waits = error, False
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

    def _evict_newest(self) -> None:
        """The newest form of the client that holds most waits until there is room for it. One alone has failed."""
        while not self._held.room(0):
            process = max(self._processes.values(), key=lambda one: one.nbytes)
            newest = list(process.forms.values())[-1]
            if len(self._processes) == len(process.forms) == 1:
                self._fail(newest, self._too_large())
                return
            newest.needed, newest.evicted_at = process.nbytes, time.monotonic()
            if len(process.forms) > 1:  # how much of that it was is known when the process has freed it, and speaks
                process.evicted = newest, process.nbytes, process.n_asked + 1
                self._held.give(process.client, process.nbytes)
                process.nbytes = 0
            self._leave(newest)
            self.ask(newest)

    def _too_large(self) -> RequestError:
        return _not_held(f"it takes more memory than {int(self._held.capacity) >> 20} MiB")


def _within(seconds: float, forms: Sequence[AnswerForm]) -> list[AnswerForm]:
    """As many of them as are expected to take so long, and the first."""
    found: list[AnswerForm] = []
    for form in forms:
        seconds -= _expectation(form)
        if found and seconds < 0:
            break
        found.append(form)
    return found


def _expectation(form: AnswerForm) -> float:
    """Processor seconds of its next step."""
    return form.expected if form.process is not None else _START_SECONDS + _REPLAY_SECONDS * len(form.taken)


def _not_held(why: str) -> RequestError:
    return RequestError(f"the form of the answer cannot be held: {why}", CODE)
