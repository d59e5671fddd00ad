"""One HTTP request: when it came, who asks, its id, its times, its outcome. Metrics, access log and traces read it.

Moments are of time.monotonic(), None as long as nothing has come so far.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from starlette.types import Scope

from server.metrics import Metrics
from tokenization.messages import Prepared

LIGHT_BYTES = 1 << 17  # of a body that counts as it came for as long as its request lives: 768 of these are 96 MiB
CLIENT_LEFT = 499  # as nginx writes it; nobody receives it


class HeldBody(Protocol):
    """What a request is told of its body."""

    end_waiting: Callable[[], bool] | None  # ends the admitted request; False: its answer has begun

    @property
    def held(self) -> int:
        """Bytes."""

    @property
    def refusal(self) -> Exception | None:
        """Of a body that gave way."""

    @property
    def left(self) -> bool:
        """Its client has."""

    def refusable(self) -> AbstractContextManager[None]:
        """A block in which the running task waits; a refusal of the body ends it, and is raised."""

    def keep(self, nbytes: int) -> None:
        """It was read, and so many bytes of it are still held."""

    def hold(self, nbytes: int) -> bool:
        """So many bytes more belong to it; False: there is no room, and nothing was counted."""

    def pin(self, nbytes: int) -> bool:
        """So many of them stay until its answer ends; False: its client has too many of those."""


@dataclass(slots=True)
class RequestContext:
    """Lies in the scope of its request: `context_of`."""

    id: str = ""  # ours
    client_request_id: str | None = None  # its X-Request-Id, where that is short and harmless
    method: str = "other"  # one of a few: a client may make up any
    received: float = field(default_factory=time.monotonic)  # the first byte of its head
    body: HeldBody | None = None  # None of a request that did not come over HTTP
    wants_timings: bool = False  # the client asks for the seconds of its stages
    left_out: tuple[str, ...] = ()  # tools of its body that nothing here can call; its answer says so
    key: str = ""  # the digest of its API key
    count: Callable[[], None] | None = None  # counts it against what its key may ask for; raises Refusal
    authorized: bool = False  # its Host is allowed; where there are keys, it has shown one of them
    client: str = ""  # who asks, as far as the workers' time is shared: known by its key or address
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of the prompts, those that the engine had in its cache
    media_tokens: int = 0  # of the prompts, those of pictures, videos and sounds
    generation_tokens: int = 0
    begun: bool = False  # an answer has its first token: from now on the request is not ended for fairness
    first_token: float | None = None  # when it was handed to the connection; of an answer in one piece, when it came
    timings: "tuple[ModelTimings, ...]" = ()  # of its requests to the model, in the order of its prompts
    status: int = CLIENT_LEFT  # until an answer begins
    error: str | None = None  # the code of what it ended with, also of a stream whose status was 200
    whole: bool = False  # the last byte was handed over
    trace_id: str | None = None

    @property
    def left(self) -> bool:
        """The client went before it had its whole answer."""
        return self.error is None and (not self.whole or self.status == CLIENT_LEFT)


def context_of(scope: Scope) -> RequestContext:
    context: RequestContext = scope["state"]["context"]
    return context


class ModelTimings:
    """When things happened to one request to the model, told to the metrics and kept for its trace."""

    def __init__(self, metrics: Metrics, context: RequestContext) -> None:
        self._metrics = metrics
        self._context = context
        context.timings += (self,)
        self.entered = time.monotonic()
        self.taken: float | None = None  # by a worker
        self.prepared: float | None = None
        self.placed: float | None = None  # into a step of the engine
        self.first: float | None = None  # its first token came
        self.last: float | None = None  # and the latest one
        self.ended: float | None = None
        self.reason: str | None = None  # why it ended
        self.n_prompt = 0  # tokens
        self.n_cached = 0  # of these, those that the engine had in its cache
        self.encode_seconds = 0.0  # of its prefill, those of encoders
        self.n_tokens: int | None = None  # sampled; None until the prompt is accepted
        self.seconds: Mapping[str, Mapping[str, float]] = {}  # a worker's, by modality and stage
        self._delivered = False

    @property
    def stages(self) -> dict[str, float]:
        """Seconds of the stages that are over, and of the decode so far; names with a dot are parts of a stage."""
        moments = {"prepare": self.prepared, "queue": self.placed, "prefill": self.first, "decode": self.last}
        found: dict[str, float] = {}
        before = self._context.received
        for name, moment in moments.items():
            if moment is None:
                break
            found[name], before = moment - before, moment
            if name == "prepare":
                if self.taken is not None:
                    found["prepare.worker_queue"] = self.taken - self.entered
                for modality, of in self.seconds.items():
                    for stage, taken in of.items():
                        found[f"prepare.{modality}.{stage}"] = taken
            elif name == "prefill" and self.encode_seconds:
                found["prefill.encode"] = self.encode_seconds
        return found

    def worker(self) -> None:
        """A worker takes it; only the first one counts."""
        if self.taken is None:
            self.taken = time.monotonic()
            self._metrics.worker_queue.observe(self.taken - self.entered)

    def waits_for_worker(self) -> None:
        """From now on: what had to be there before, its form or its media by URL, is."""
        self.entered = time.monotonic()

    def prompt(self, prepared: Prepared) -> None:
        self.prepared = time.monotonic()
        self.n_prompt, self.n_tokens, self.seconds = len(prepared.input_ids), 0, prepared.seconds
        waited = (self.taken or self.entered) - self.entered  # no stage of a request is in two of these
        self._metrics.preparation.observe(self.prepared - self._context.received - waited)
        self._context.prompt_tokens += self.n_prompt
        for item in prepared.media:
            for _, length in item.spans:
                self._context.media_tokens += length
        self._metrics.prompt_tokens.inc(self.n_prompt)
        self._metrics.request_prompt_tokens.observe(self.n_prompt)
        for modality, stages in prepared.seconds.items():
            for stage, seconds in stages.items():
                self._metrics.preprocess.labels(modality, stage).observe(seconds)

    def scheduled(self, at: float | None, share: str, n_cached: int, encode_seconds: float = 0.0) -> None:
        """When its first step began, None: with its first token; only the first call counts.

        share: the class of its client's share when it was admitted; n_cached: tokens of its prompt that were cached;
        encode_seconds: of encoders over its media, 0 where none ran.
        """
        if self.placed is not None:
            return
        self.n_cached = n_cached
        self._context.cached_tokens += n_cached
        self.encode_seconds = encode_seconds
        if encode_seconds:
            self._metrics.encode.observe(encode_seconds)
        self.placed = time.monotonic() if at is None else at
        waited = self.placed - (self.prepared or self.entered)
        self._metrics.queue.observe(waited)
        self._metrics.share_wait.labels(self._metrics.model_name, share).observe(
            waited + (self.taken or self.entered) - self.entered
        )

    def tokens(self, n: int) -> None:
        now = time.monotonic()
        if self.last is None:
            self.first = now
            self._metrics.prefill.observe(now - (self.placed or self.entered))
        else:
            self._metrics.itl.observe(now - self.last)
        self.last = now
        self.n_tokens = (self.n_tokens or 0) + n
        self._context.generation_tokens += n
        self._metrics.generation_tokens.inc(n)

    def delivered(self) -> None:
        """A delta is on its way to the client, or laid by for an answer in one piece; only the first call counts."""
        if self._delivered:
            return
        self._delivered = True
        now = time.monotonic()
        self._metrics.ttft.observe(now - self._context.received)
        if self._context.first_token is None:
            self._context.first_token = now

    def end(self, reason: str) -> None:
        """The request ended; only the first call counts."""
        if self.ended is not None:
            return
        metrics, now = self._metrics, time.monotonic()
        self.ended, self.reason = now, reason
        if self.n_tokens is not None:
            metrics.request_generation_tokens.observe(self.n_tokens)
        if reason in ("stop", "length"):
            metrics.e2e.observe(now - self._context.received)
            if self.first is not None:
                metrics.decode.observe(now - self.first)
