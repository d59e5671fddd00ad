"""When things happened to one HTTP request and to its requests to the model: for metrics, log lines and traces."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from server.metrics import Metrics
from tokenization.messages import Prepared


@dataclass(slots=True)
class Tally:
    """When one HTTP request came, by time.monotonic(), and what it has had of the model since."""

    received: float = field(default_factory=time.monotonic)  # the first byte of its head
    prompt_tokens: int = 0
    generation_tokens: int = 0
    first_token: float | None = None  # when it was handed to the connection; of an answer in one piece, when it came
    watches: "list[Stopwatch]" = field(default_factory=list)  # of its requests to the model
    timed: bool = False  # the client wants to know the seconds of its stages
    client: str = ""  # who asks, as far as the workers' time is shared


class Stopwatch:
    """When things happened to one request to the model, told to the metrics and kept for its trace.

    Moments are of time.monotonic(), None as long as nothing has come so far.
    """

    def __init__(self, metrics: Metrics, tally: Tally) -> None:
        self._metrics = metrics
        self._tally = tally
        tally.watches.append(self)
        self.entered = time.monotonic()
        self.taken: float | None = None  # by a worker
        self.prepared: float | None = None
        self.placed: float | None = None  # in the engine
        self.first: float | None = None  # its first token came
        self.last: float | None = None  # and the latest one
        self.ended: float | None = None
        self.reason: str | None = None  # why it ended
        self.n_prompt = 0  # tokens
        self.n_tokens: int | None = None  # sampled; None until the prompt is accepted
        self.seconds: Mapping[str, Mapping[str, float]] = {}  # a worker's, by modality and stage
        self._delivered = False

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of the stages that are over, and of the decode so far; `prepare.*` are parts of `prepare`."""
        parts = {
            f"prepare.{modality}.{stage}": taken for modality, of in self.seconds.items() for stage, taken in of.items()
        }
        moments = {"prepare": self.prepared, "queue": self.placed, "prefill": self.first, "decode": self.last}
        found: dict[str, float] = {}
        before = self._tally.received
        for name, moment in moments.items():
            if moment is None:
                break
            found[name], before = moment - before, moment
            if name == "prepare":
                found |= parts
        return found

    def worker(self) -> None:
        """A worker takes it; only the first one counts."""
        if self.taken is None:
            self.taken = time.monotonic()
            self._metrics.worker_queue.observe(self.taken - self.entered)

    def prompt(self, prepared: Prepared) -> None:
        self.prepared = time.monotonic()
        self.n_prompt, self.n_tokens, self.seconds = len(prepared.input_ids), 0, prepared.seconds
        self._tally.prompt_tokens += self.n_prompt
        self._metrics.prompt_tokens.inc(self.n_prompt)
        self._metrics.request_prompt_tokens.observe(self.n_prompt)
        for modality, stages in prepared.seconds.items():
            for stage, seconds in stages.items():
                self._metrics.preprocess.labels(modality, stage).observe(seconds)

    def started(self) -> None:
        self.placed = time.monotonic()
        self._metrics.queue.observe(self.placed - (self.prepared or self.entered))

    def tokens(self, n: int) -> None:
        now = time.monotonic()
        if self.last is None:
            self.first = now
            self._metrics.prefill.observe(now - (self.placed or self.entered))
        else:
            self._metrics.itl.observe(now - self.last)
        self.last = now
        self.n_tokens = (self.n_tokens or 0) + n
        self._tally.generation_tokens += n
        self._metrics.generation_tokens.inc(n)

    def delivered(self) -> None:
        """A delta is on its way to the client, or laid by for an answer in one piece; only the first call counts."""
        if self._delivered:
            return
        self._delivered = True
        now = time.monotonic()
        self._metrics.ttft.observe(now - self._tally.received)
        if self._tally.first_token is None:
            self._tally.first_token = now

    def end(self, reason: str) -> None:
        """The request ended; only the first call counts."""
        if self.ended is not None:
            return
        metrics, now = self._metrics, time.monotonic()
        self.ended, self.reason = now, reason
        metrics.finished.labels(metrics.model_name, reason).inc()
        if self.n_tokens is not None:
            metrics.request_generation_tokens.observe(self.n_tokens)
        if reason in ("stop", "length"):
            metrics.e2e.observe(now - self._tally.received)
            if self.first is not None:
                metrics.decode.observe(now - self.first)
