"""The loop of a tokenizer worker: jobs one at a time, a pulse, and an answer to every job."""

import functools
import importlib
import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Literal

import pybase64

from shm import Channel, ChannelClosed, Pulse, SegmentError
from tokenization.cancel import Cancelled, Check, go_on
from tokenization.chat.errors import ChatError, in_field
from tokenization.chat.parts import Kind
from tokenization.media.fetch import fetch
from tokenization.messages import (
    Cancel,
    Compile,
    Compiled,
    Draw,
    Drawn,
    Encode,
    FromWorker,
    Job,
    Leases,
    Measured,
    PrepareFailed,
    StartWorker,
    ToWorker,
    WorkerGrown,
    WorkerPulse,
    WorkerReady,
)
from tokenization.prepare import NotShort, encode, prepare
from tokenization.processor import Processor
from tokenization.worker_memory import TOO_LARGE, WorkerMemory, within_bound

if TYPE_CHECKING:
    from tokenization.structured.vocabulary import GrammarVocabulary

IDLE_SECONDS = 2.0  # without a job; then buffers for a next one go back to the system, too
MAX_PNG_BYTES = 64 << 20  # a frame of the channel holds it with room to spare

_log = logging.getLogger(__name__)


def run(channel: Channel[ToWorker], start: StartWorker, processor: Processor, pulse: Pulse) -> None:
    """Serve jobs until the channel ends, then raise what ended it. Says WorkerReady when it can, by then in the pulse.

    StartWorker has been read. A Prepare or Encode is answered by Prepared, a Draw by Drawn, a Compile by
    Compiled, and each of them by PrepareFailed where there is nothing to give.
    """
    if start.lane != "text":
        load_decoders(processor.modalities)
    inbox = _Inbox(channel)
    threading.Thread(target=inbox.read, name="worker-reader", daemon=True).start()
    memory = WorkerMemory(start.worker)
    compiler = _Compiler(processor, memory, start.compile_bytes)

    def trim(*, idle: bool) -> None:
        if kept := memory.trim(idle=idle):
            channel.send(WorkerGrown(nbytes=kept))

    try:
        channel.send(WorkerReady())
        pulse.say(inbox.pulse)
        while True:
            within: float | None = IDLE_SECONDS
            while (job := inbox.next_job(within)) is None:
                trim(idle=True)
                within = None
            answer = _answer(job, start, processor, inbox, compiler)
            inbox.finished()
            del job  # a chat holds its media as they were sent
            # A job that met the bound may leave no room for the next: the server is told before it sends that one.
            met_bound = isinstance(answer, PrepareFailed) and answer.code == TOO_LARGE
            if met_bound:
                trim(idle=False)
            channel.send(answer)
            del answer
            if not met_bound:
                trim(idle=False)
    finally:
        pulse.stop()


def load_decoders(modalities: Collection[Kind]) -> None:
    """Import what opens these media, so that no request pays for the late imports of processors."""
    if "image" in modalities or "video" in modalities:
        importlib.import_module("tokenization.media.draw")
    if "video" in modalities:
        importlib.import_module("tokenization.media.video_frames")
    if "audio" in modalities:
        importlib.import_module("tokenization.media.audio")


def _answer(job: Job, start: StartWorker, processor: Processor, inbox: "_Inbox", compiler: "_Compiler") -> FromWorker:
    check = functools.partial(inbox.check_cancelled, job.request_id)

    def failed(
        kind: Literal["bad_request", "internal", "cancelled", "long"], message: str, param: str | None = None,
        code: str | None = None,
    ) -> PrepareFailed:  # fmt: skip
        return PrepareFailed(request_id=job.request_id, kind=kind, message=message, param=param, code=code)

    try:
        check()
        with within_bound():
            if isinstance(job, Draw):
                return picture_with_boxes(job, start, check)
            if isinstance(job, Compile):
                return compiler.compile(job, check)
            if isinstance(job, Encode):
                return encode(job, start, processor)
            return prepare(job, start, processor, inbox.ask, check)
    except ChatError as error:
        return failed("bad_request", error.message, error.param, error.code)
    except NotShort:
        return failed("long", "another worker has the time for it")
    except Cancelled:
        return failed("cancelled", "the request ended while it was prepared")
    except SegmentError as error:  # most often the request has ended, and its leases with it
        _log.warning("request %s: %s", job.request_id, error)
        return failed("internal", "the shared memory of this request could not be written", code="media_unavailable")
    except ChannelClosed:
        raise
    except Exception:  # noqa: BLE001 - a process main: one job's trouble must not end the others
        _log.exception("preparing request %s failed", job.request_id)
        return failed("internal", "the request could not be prepared")


def picture_with_boxes(job: Draw, start: StartWorker, check: Check = go_on) -> Drawn:
    """Raises ChatError when the picture is gone, is no picture, or is too large to send when drawn."""
    from tokenization.media.draw import draw_boxes  # Pillow, which a worker of texts does without

    limits = start.media
    with in_field(job.media.param):
        data = fetch(job.media.source, roots=limits.roots, max_bytes=limits.max_file_bytes)
        png, notes = draw_boxes(data, job.boxes, max_source_pixels=limits.max_source_pixels, check=check)
        if len(png) > MAX_PNG_BYTES:
            raise ChatError(f"the drawn picture would have {len(png)} bytes, more than {MAX_PNG_BYTES}")
    url = "data:image/png;base64," + pybase64.b64encode(png).decode("ascii")
    return Drawn(request_id=job.request_id, picture=url, notes=notes)


class _Compiler:
    """Compiles the forms of answers. What that takes is loaded by the first one."""

    def __init__(self, processor: Processor, memory: WorkerMemory, most_bytes: int) -> None:
        """most_bytes: that compiling one may take."""
        self._processor, self._memory, self._most_bytes = processor, memory, most_bytes
        self._vocabulary: GrammarVocabulary | None = None

    def compile(self, job: Compile, check: Check) -> Compiled | PrepareFailed:
        """Raises ChatError."""
        from tokenization.structured.compile import compile_grammar
        from tokenization.structured.vocabulary import GrammarVocabulary

        if self._vocabulary is None:
            tokenizer = self._processor.tokenizer
            self._vocabulary = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
            self._memory.stays()
        try:
            found = compile_grammar(
                job.grammar, self._vocabulary, check, blanks=job.blanks, most_bytes=self._most_bytes
            )
        except OSError as error:  # no pipe or no process
            _log.warning("request %s: no process compiles its form: %s", job.request_id, error)
            why = "the machine has no process or no memory left to compile the form of the answer"
            return PrepareFailed(request_id=job.request_id, kind="unavailable", message=why)
        return Compiled(request_id=job.request_id, grammar=found)


class _Inbox:
    """Messages from the server: the reader thread puts them in, the job thread takes them out."""

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self._channel = channel
        self._changed = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._replies: dict[str, Leases | Cancel] = {}  # of queued and running jobs only
        self._closed: Exception | None = None
        self.running: tuple[str | None, float] = (None, 0.0)  # request; since when (monotonic), later by what it waited
        self._moved = 0.0  # when the running job last made progress
        self._asked: float | None = None  # since when it waits for the server

    def read(self) -> None:
        """The reader thread's main."""
        try:
            while True:
                message = self._channel.recv(None)
                if message is not None:
                    self._put(message)
                del message  # the next one may come in hours
        except Exception as error:  # noqa: BLE001 - what ended it is raised again where the jobs are done
            with self._changed:
                self._closed = error
                self._changed.notify_all()

    def _put(self, message: ToWorker) -> None:
        """An answer to a job that is no longer here is dropped."""
        with self._changed:
            if isinstance(message, Job):
                self._jobs.append(message)
            elif isinstance(message, Leases | Cancel):
                known = {self.running[0], *(job.request_id for job in self._jobs)}
                earlier = self._replies.get(message.request_id)
                if message.request_id in known and not isinstance(earlier, Cancel):
                    self._replies[message.request_id] = message
            self._changed.notify_all()

    def next_job(self, within: float | None) -> Job | None:
        """The oldest job, which counts as running until `finished`; None where none came in so many seconds."""
        with self._changed:
            if not self._changed.wait_for(lambda: bool(self._jobs) or self._closed is not None, within):
                return None
            self._raise_if_closed()
            job = self._jobs.popleft()
            self._moved = time.monotonic()
            self.running = (job.request_id, self._moved)
            return job

    def pulse(self) -> WorkerPulse:
        """How long the running job has taken, and how long it has made no progress; neither runs while it waits."""
        with self._changed:
            request_id, since = self.running
            if request_id is None:
                return WorkerPulse(request_id=None, busy_seconds=0.0)
            now = time.monotonic() if self._asked is None else self._asked
            return WorkerPulse(request_id=request_id, busy_seconds=now - since, still_seconds=now - self._moved)

    def finished(self) -> None:
        with self._changed:
            request_id, _ = self.running
            self.running = (None, 0.0)
            if request_id is not None:
                self._replies.pop(request_id, None)

    def ask(self, measured: Measured) -> Sequence[str]:
        """Say what the running job needs, and wait for the names that are leased to it. Raises Cancelled."""
        self._channel.send(measured)
        with self._changed:
            self._asked = self._moved = began = time.monotonic()
            while measured.request_id not in self._replies and self._closed is None:
                self._changed.wait()
            self._asked, self._moved = None, time.monotonic()
            request_id, since = self.running
            self.running = (request_id, since + self._moved - began)
            self._raise_if_closed()
            reply = self._replies[measured.request_id]
            if isinstance(reply, Cancel):
                raise Cancelled
            del self._replies[measured.request_id]  # a job may measure again, and must not take these for the new ones
            return reply.names

    def check_cancelled(self, request_id: str) -> None:
        """Raises Cancelled when the server has said so, and what closed the channel when it is closed.

        A job that asks has made progress.
        """
        with self._changed:
            self._moved = time.monotonic()
            self._raise_if_closed()
            if isinstance(self._replies.get(request_id), Cancel):
                raise Cancelled

    def _raise_if_closed(self) -> None:
        if self._closed is not None:
            raise self._closed
