"""Everything /metrics shows, in a registry of its own; names stay close to vLLM's. Measures and decides nothing."""

import time
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest

from model.engine.messages import EngineStats
from shm import PoolStats
from tokenization.messages import Prepared

PREFIX = "pixelferry:"
FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
FINISHED = ("stop", "length", "abort", "error")


class Metrics:
    """Counters and histograms that requests feed, and gauges that are set when somebody looks."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, which nobody plots
        self.registry = CollectorRegistry()
        self._finished = self._counter("request_success", "Requests that ended, by how.", ("finished_reason",))
        self._prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts, media pads included.")
        self._generation_tokens = self._counter("generation_tokens", "Sampled tokens.")
        self._rejected = self._counter("mm_rejected", "Requests that were turned away, by reason.", ("reason",))
        self._restarts = self._counter("child_restarts", "Child processes that were started again.", ("role",))
        self._swept = self._counter("shm_swept_bytes", "Shared memory of dead owners that was freed.")
        self._preemptions = self._gauge("num_preemptions", "Preemptions since the engine started.")
        self._running = self._gauge("num_requests_running", "Sequences in the engine's batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait, by where.", ("place",))
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Used share of the KV cache's blocks, 0 to 1.")
        self._embeddings = self._gauge("mm_embedding_bytes", "Encoder outputs that are kept in host memory.")
        self._inflight = self._gauge("mm_inflight_bytes", "Bytes of request bodies that are held now.")
        self._shm = self._gauge("shm_bytes", "Shared memory of the pool, by state.", ("state",))
        self._shm_capacity = self._gauge("shm_bytes_capacity", "Shared memory that the pool may hold.")
        self._segments = self._gauge("shm_segments", "Segments of the pool, by state.", ("state",))
        self._path_files = self._gauge("shm_path_files", "Path files of requests that hold leases.")
        self._up = self._gauge("children_up", "Live child processes that are ready for work.", ("role",))
        self._ttft = self._histogram("time_to_first_token_seconds", "From acceptance to the first token.", SLOW)
        self._itl = self._histogram("inter_token_latency_seconds", "Between two deltas of one answer.", FAST)
        self._e2e = self._histogram("e2e_request_latency_seconds", "From acceptance to the last token.", SLOW)
        self._queue = self._histogram("request_queue_time_seconds", "From prepared to a place in the engine.", SLOW)
        self._preprocess = self._histogram(
            "mm_preprocess_seconds", "Time of a worker, by modality and stage.", FAST, ("modality", "stage")
        )
        self._steps = self._histogram("engine_step_seconds", "Time of an engine step, by stage.", FAST, ("stage",))
        for reason in FINISHED:
            self._finished.labels(reason)
        for role in ("worker", "engine"):
            self._restarts.labels(role)

    def watch(self) -> "Stopwatch":
        return Stopwatch(self)

    def reject(self, reason: str) -> None:
        self._rejected.labels(reason).inc()

    def restart(self, role: str) -> None:
        self._restarts.labels(role).inc()

    def swept(self, nbytes: int) -> None:
        """The sweeper freed what a dead owner had left."""
        self._swept.inc(nbytes)

    def step(self, seconds: Mapping[str, float]) -> None:
        """The engine ran a step; `seconds` by stage: encode, prefill or decode, sample."""
        for stage, spent in seconds.items():
            self._steps.labels(stage).observe(spent)

    def set_engine(self, stats: EngineStats | None) -> None:
        """The engine's latest snapshot; None while it is down."""
        self._running.set(stats.running if stats else 0)
        self._waiting.labels("engine").set(stats.waiting if stats else 0)
        self._kv_usage.set(stats.kv_blocks_used / max(1, stats.kv_blocks_total) if stats else 0)
        self._preemptions.set(stats.preemptions if stats else 0)
        self._embeddings.set(stats.embedding_bytes if stats else 0)

    def set_pool(self, stats: PoolStats) -> None:
        self._shm.labels("leased").set(stats.leased_bytes)
        self._shm.labels("idle").set(stats.idle_bytes)
        self._shm_capacity.set(stats.capacity)
        self._segments.labels("leased").set(stats.leases)
        self._segments.labels("idle").set(stats.segments - stats.leases)
        self._path_files.set(stats.path_files)

    def set_server(self, *, waiting: Iterable[tuple[str, int]], up: Iterable[tuple[str, int]], body_bytes: int) -> None:
        for place, n in waiting:
            self._waiting.labels(place).set(n)
        for role, n in up:
            self._up.labels(role).set(n)
        self._inflight.set(body_bytes)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)


class Stopwatch:
    """When things happened to one request, told to the metrics as they happen."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._begun = time.monotonic()
        self._prepared = self._begun
        self._last: float | None = None  # of the latest delta
        self._ended = False

    def prompt(self, prepared: Prepared) -> None:
        self._prepared = time.monotonic()
        self._metrics._prompt_tokens.inc(len(prepared.input_ids))
        for modality, stages in prepared.seconds.items():
            for stage, seconds in stages.items():
                self._metrics._preprocess.labels(modality, stage).observe(seconds)

    def started(self) -> None:
        self._metrics._queue.observe(time.monotonic() - self._prepared)

    def tokens(self, n: int) -> None:
        now = time.monotonic()
        if self._last is None:
            self._metrics._ttft.observe(now - self._begun)
        else:
            self._metrics._itl.observe(now - self._last)
        self._last = now
        self._metrics._generation_tokens.inc(n)

    def end(self, reason: str) -> None:
        """The request ended; only the first call counts."""
        if not self._ended:
            self._ended = True
            self._metrics._finished.labels(reason).inc()
            if reason in ("stop", "length"):
                self._metrics._e2e.observe(time.monotonic() - self._begun)

    def failed(self, rejected: str | None) -> None:
        """It ended with an error. `rejected` says which queue or budget was full; None: none was."""
        if rejected is not None:
            self._metrics.reject(rejected)
        self.end("error")
