"""Forms of answers are compiled beside the steps, by one thread, whose turn it is as everywhere."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from model.engine.messages import Generate
from model.engine.scheduling.fair_shares import FairQueue

if TYPE_CHECKING:
    from model.engine.sampling.forms import AnswerForm, Forms


class FormReady(msgspec.Struct, frozen=True):
    """Told to the engine's own inbox: the form of this request is compiled, or why it could not be."""

    generate: Generate
    form: "AnswerForm | None" = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _FormJob:
    """A request whose form waits to be compiled, or is."""

    generate: Generate
    client: str
    expected: float = 0.001  # seconds; a hostile form takes some thousand times as long, which counts in the end


class FormJobs:
    """Requests whose forms are compiled beside the steps, client by client: the engine gets each when it is done."""

    def __init__(self, forms: Callable[[], "Forms"], done: Callable[[FormReady], None]) -> None:
        """forms: what compiles them, loaded by its first call. done: is told each one, in another thread."""
        self._forms, self._done = forms, done
        self._thread: ThreadPoolExecutor | None = None
        self._inside: dict[str, _FormJob] = {}
        self._line: FairQueue[_FormJob] = FairQueue(small_first=False)
        self._lock = threading.Lock()  # of the line

    def begin(self, generate: Generate) -> None:
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="forms")
        job = self._inside[generate.request_id] = _FormJob(generate, str(generate.client))
        with self._lock:
            self._line.join(job)
        self._thread.submit(self._compile_next)

    def end(self, request_id: str, generate: Generate | None = None) -> bool:
        """Whether the request was still waited for. generate: that very one, and no later one of its name."""
        job = self._inside.get(request_id)
        if job is None or (generate is not None and job.generate is not generate):
            return False
        del self._inside[request_id]
        with self._lock:
            if job in self._line.waiting:  # others wait for the thread
                self._line.done(job, None)
        return True

    def _compile_next(self) -> None:
        with self._lock:
            job = self._line.next(lambda job: True)
        if job is None:  # somebody has left
            return
        generate, began = job.generate, time.thread_time()
        try:
            assert generate.grammar is not None
            form = self._forms().start(generate.grammar, generate.sampling.stop_token_ids, generate.salt)
            self._done(FormReady(generate, form))
        except BaseException as error:  # noqa: BLE001 - whatever it is, a panic of the library too, it is this request's
            self._done(FormReady(generate, error=error))
        finally:
            with self._lock:
                self._line.done(job, time.thread_time() - began)
