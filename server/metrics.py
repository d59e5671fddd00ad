"""Everything /metrics shows, in a registry of its own; names stay close to vLLM's. Measures and decides nothing."""

import platform
from collections import defaultdict
from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from model.engine.messages import EngineStats, StepDone
from server.usage import ProcessUsage
from shm import PoolStats

PREFIX = "pixelferry:"
# How a request ends. Each has its series from the start, or the first of a burst would count for nothing in a rate.
FINISHED = ("stop", "length", "abort")
FAULTS = (
    "broken", "connections_full", "cut_off", "downloading", "engine_died", "engine_down", "fetcher_died",
    "fetcher_down", "internal", "loading", "media_unavailable", "no_process", "shm_gone", "stopping", "worker_died",
    "workers_down",
)  # fmt: skip  # codes of errors that are this server's own, whatever the status: PixelferryErrors reads them
REFUSALS = (
    "asks_too_much", "bodies_full", "body_timeout", "body_too_large", "concurrency_limit_exceeded",
    "context_length_exceeded", "cors_refused", "form_too_large", "gave_way", "head_too_large", "host_not_allowed",
    "http_version", "invalid_api_key", "invalid_form", "invalid_host", "invalid_json", "invalid_request",
    "media_fetch_failed", "media_too_costly", "media_too_large", "media_url_forbidden", "memory_full",
    "method_not_allowed", "model_not_found", "origin_not_allowed", "queue_full", "rate_limit_exceeded",
    "route_not_found", "route_not_supported", "structured_output", "too_many_parts", "too_many_values", "took_too_long",
    "unknown_field", "unknown_parameter", "unread", "unread_full", "unsupported_media_type", "unsupported_modality",
    "unsupported_parameter", "worker_memory",
)  # fmt: skip  # codes of all others
MODEL = "model_name"
MALFORMED = "malformed"  # the route of bytes that are no HTTP
# Edges of histograms: seconds, and tokens.
FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
WORK = (*FAST, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)  # a video, or a picture's tower on a CPU
STEP = (0.0001, 0.00025, 0.0005, *WORK)  # what the host takes of a step on a device, and all of one on a CPU
SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0)
# The edges that vLLM has, so that quantiles of both compare.
FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0,
    640.0, 2560.0,
)  # fmt: skip
TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
ANSWERS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)


class Metrics:
    """Counters and histograms that requests feed, and gauges that are set when somebody looks.

    Those of one request to the model are fed by its ModelTimings. What vLLM labels with the model's name has it here.
    """

    def __init__(self, model_name: str, version: str) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each counter and histogram, which nobody plots
        self.registry = CollectorRegistry()
        self.model_name = model_name
        self._seen: dict[Counter, float] = {}  # of what others count: how far each is told
        self._lines_dropped: Callable[[], int] = int
        self._series: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}  # of answers, by their labels
        ProcessCollector(registry=self.registry)
        build = self._gauge("build_info", "1; which build runs is in the labels.", ("version", "python_version"))
        build.labels(version, platform.python_version()).set(1)
        self._add_http()
        self._add_requests()
        self._add_engine()
        self._add_memory()

    def _add_http(self) -> None:
        labels = ("method", "route", "status")
        self._answers = self._counter("http_requests", "HTTP requests that ended, by the route's template.", labels)
        self._answer_seconds = self._histogram(
            "http_request_duration_seconds", "From an HTTP request's first byte to its answer's last.", ANSWERS, labels
        )
        self._rejected = self._counter(
            "mm_rejected", "Requests that ended with an error, by the error's code.", ("reason",)
        )
        self._inflight = self._gauge("mm_inflight_bytes", "Bytes of request bodies that are held now.")
        self._connections = self._gauge("http_connections", "Connections that are open.")
        self._unread = self._gauge("mm_unread_bytes", "Bytes of answers that no client has taken yet.")
        self._dropped = self._counter("log_lines_dropped", "Log lines that nobody read in time.")

    def _add_requests(self) -> None:
        name = self.model_name
        self._ended = self._counter("request_success", "Requests that ended, by how.", (MODEL, "finished_reason"))
        for reason in (*FINISHED, *FAULTS, *REFUSALS):
            self._ended.labels(name, reason)
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts and media.", (MODEL,)).labels(name)
        self.generation_tokens = self._counter("generation_tokens", "Sampled tokens.", (MODEL,)).labels(name)
        self.request_prompt_tokens = self._of_model("request_prompt_tokens", "Tokens of one prompt.", TOKENS)
        self.request_generation_tokens = self._of_model(
            "request_generation_tokens", "Sampled tokens of one request, all its answers together.", TOKENS
        )
        self.ttft = self._of_model(
            "time_to_first_token_seconds", "From a request's first byte to its first token.", FIRST_TOKEN
        )
        self.itl = self._of_model("inter_token_latency_seconds", "Between two deltas of one answer.", FAST)
        self.e2e = self._of_model("e2e_request_latency_seconds", "From a request's first byte to its last token.", SLOW)
        self.worker_queue = self._of_model(
            "request_worker_queue_time_seconds", "From a request that was read to a worker that takes it.", FIRST_TOKEN
        )
        self.preparation = self._of_model(
            "request_preparation_time_seconds", "From a request's first byte to prepared, less its wait for a worker.",
            FIRST_TOKEN,
        )  # fmt: skip
        self.queue = self._of_model(
            "request_queue_time_seconds", "From prepared to the first step that computes it.", SLOW
        )
        self.share_wait = self._histogram(
            "client_share_wait_seconds", "What a request waited for a worker and for its first step, by whether "
            "its client had nothing else here, at most a fair share of the places, or more.", SLOW, (MODEL, "share"),
        )  # fmt: skip
        for share in ("first", "within", "beyond"):
            self.share_wait.labels(name, share)
        self._gave_way = self._counter(
            "client_share_gave_way", "What made room for clients that had less than their share, by what was scarce.",
            ("of",),
        )  # fmt: skip
        for of in ("places", "shared_memory"):
            self._gave_way.labels(of)
        self.prefill = self._of_model(
            "request_prefill_time_seconds", "From its first step to the first token.", FIRST_TOKEN
        )
        self.decode = self._of_model("request_decode_time_seconds", "From the first token to the last.", SLOW)
        self.preprocess = self._histogram(
            "mm_preprocess_seconds", "Time of a worker, by modality and stage.", WORK, ("modality", "stage")
        )

    def _add_engine(self) -> None:
        name = self.model_name
        self._of_stats = {"gave_way": self._gave_way.labels("seats")}  # counters of the engine's snapshots, by field
        for field, metric, text in (
            ("preemptions", "num_preemptions", "Sequences that gave up their cache."),
            ("prefix_queries", "prefix_cache_queries", "Tokens of prompts that were looked for in the KV cache."),
            ("prefix_hits", "prefix_cache_hits", "Of these, those that were there and not computed."),
            ("mm_cache_queries", "mm_cache_queries", "Media let in."),
            ("mm_cache_hits", "mm_cache_hits", "Media not encoded again."),
        ):
            self._of_stats[field] = self._counter(metric, text, (MODEL,)).labels(name)
        self._running = self._gauge("num_requests_running", "Sequences in the engine's batch.", (MODEL,)).labels(name)
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait, by where.", (MODEL, "place"))
        text = "Share of the KV cache's blocks that requests hold."
        self._kv_usage = self._gauge("kv_cache_usage_perc", text, (MODEL,)).labels(name)
        self._iteration_tokens = self._of_model("iteration_tokens", "Tokens that one step computed.", STEP_TOKENS)
        self._steps = self._histogram("engine_step_seconds", "Time of an engine step, by stage.", STEP, ("stage",))
        self._embeddings = self._gauge("mm_embedding_bytes", "Encoder outputs that unfinished requests reserve.")
        self._kept = self._gauge("mm_cache_bytes", "Encoder outputs that a request with the same media may take.")
        self._ready = self._gauge("ready", "1 while /health/ready answers 200, else 0.")
        self._wanted = self._gauge("children", "Child processes that there should be.", ("role",))
        self._up = self._gauge("children_up", "Live child processes that are ready for work.", ("role",))
        self._resident = self._gauge("child_resident_memory_bytes", "Memory of the child processes.", ("role",))
        self._open = self._gauge("child_open_fds", "Files that the child processes have open.", ("role",))
        self._cpu = self._counter("child_cpu_seconds", "Processor time of all child processes so far.", ("role",))
        self._restarts = self._counter("child_restarts", "Child processes that were started again.", ("role",))
        self._canaries = self._counter("canaries", "Requests for one token of the server's own.", ("result",))
        for result in ("answered", "late", "failed"):
            self._canaries.labels(result)
        self._hangs = self._counter("child_hangs", "Child processes that hung and were killed.", ("role",))
        self._renewals = self._counter("child_renewals", "Child processes that were replaced though well.", ("role",))
        for role in ("worker", "text_worker", "picture_worker", "engine"):
            self._restarts.labels(role)
            self._hangs.labels(role)
        for role in ("worker", "text_worker", "picture_worker"):
            self._renewals.labels(role)

    def _add_memory(self) -> None:
        self._shm = self._gauge("shm_bytes", "Shared memory of the pool, by state.", ("state",))
        self._shm_capacity = self._gauge("shm_bytes_capacity", "Shared memory that the pool may hold.")
        self._others = self._gauge("shm_others_bytes", "Part of that which files of others keep from the pool.")
        self._segments = self._gauge("shm_segments", "Segments of the pool, by state.", ("state",))
        self._path_files = self._gauge("shm_path_files", "Path files of requests that hold leases.")
        self._swept = self._counter("shm_swept_bytes", "Shared memory of dead owners that was freed.")

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """An HTTP request ended. `route` is a template, and `method` one of a few: both become labels."""
        labels = (method, route, str(status))
        series = self._series.get(labels)
        if series is None:
            series = self._series[labels] = (self._answers.labels(*labels), self._answer_seconds.labels(*labels))
        series[0].inc()
        series[1].observe(seconds)

    def ended(self, how: str) -> None:
        """A request that asked for more than how the server is, or one of its prompts, ended."""
        self._ended.labels(self.model_name, how).inc()

    def malformed(self, status: int) -> None:
        """Bytes came that are no HTTP request, or never became one; they were answered with `status`."""
        self._answers.labels("other", MALFORMED, str(status)).inc()

    def reject(self, reason: str) -> None:
        """A request ended with an error of that code."""
        self._rejected.labels(reason).inc()

    def restart(self, role: str) -> None:
        self._restarts.labels(role).inc()
        if role == "engine":
            for counter in self._of_stats.values():
                self._seen.pop(counter, None)

    def gave_way(self, of: str) -> None:
        """A request made room for one of a client that had less than its share."""
        self._gave_way.labels(of).inc()

    def canary(self, result: str) -> None:
        """The engine was asked for one token by the server itself."""
        self._canaries.labels(result).inc()

    def hang(self, role: str) -> None:
        self._hangs.labels(role).inc()

    def renewal(self, role: str) -> None:
        """A child of that role was replaced although it was well."""
        self._renewals.labels(role).inc()

    def swept(self, nbytes: int) -> None:
        """The sweeper freed what a dead owner had left."""
        self._swept.inc(nbytes)

    def step(self, step: StepDone) -> None:
        """The engine ran a step."""
        for stage, spent in step.seconds.items():
            self._steps.labels(stage).observe(spent)
        self._iteration_tokens.observe(step.n_tokens)
        for name, counter in self._of_stats.items():
            self._grow(counter, getattr(step.stats, name))

    def look_at(
        self, *, connections: Callable[[], int], unread_bytes: Callable[[], int], lines_dropped: Callable[[], int]
    ) -> None:
        """Asked whenever somebody looks. lines_dropped: of the log, since the start."""
        self._connections.set_function(connections)
        self._unread.set_function(unread_bytes)
        self._lines_dropped = lines_dropped

    def set_engine(self, stats: EngineStats | None, kept_bytes: int = 0) -> None:
        """The engine's latest snapshot, None while it is down; kept_bytes: of embeddings by content."""
        self._kept.set(kept_bytes)
        self._running.set(stats.running if stats else 0)
        self._waiting.labels(self.model_name, "engine").set(stats.waiting if stats else 0)
        self._kv_usage.set(stats.kv_blocks_used / max(1, stats.kv_blocks_total) if stats else 0)
        self._embeddings.set(stats.embedding_bytes if stats else 0)

    def set_pool(self, stats: PoolStats) -> None:
        self._shm.labels("leased").set(stats.leased_bytes)
        self._shm.labels("idle").set(stats.idle_bytes)
        self._shm_capacity.set(stats.capacity)
        self._others.set(stats.others_bytes)
        self._segments.labels("leased").set(stats.leases)
        self._segments.labels("idle").set(stats.segments - stats.leases)
        self._path_files.set(stats.path_files)

    def set_server(
        self, *, waiting: Iterable[tuple[str, int]], children: Iterable[tuple[str, bool, ProcessUsage]],
        body_bytes: int, ready: bool,
    ) -> None:  # fmt: skip
        """waiting: (place, requests); children: of each that there should be its role, whether it is up, its usage."""
        for place, n in waiting:
            self._waiting.labels(self.model_name, place).set(n)
        of_role: defaultdict[str, list[tuple[bool, ProcessUsage]]] = defaultdict(list)
        for role, up, usage in children:
            of_role[role].append((up, usage))
        for role, of in of_role.items():
            used = sum((usage for _, usage in of), ProcessUsage())
            self._up.labels(role).set(sum(up for up, _ in of))
            self._wanted.labels(role).set(len(of))
            self._resident.labels(role).set(used.resident_bytes)
            self._open.labels(role).set(used.open_files)
            self._grow(self._cpu.labels(role), used.cpu_seconds)
        self._ready.set(ready)
        self._inflight.set(body_bytes)

    def render(self) -> bytes:
        self._grow(self._dropped, self._lines_dropped())
        return generate_latest(self.registry)

    def _grow(self, counter: Counter, total: float) -> None:
        """Of what somebody else counts."""
        counter.inc(max(0, total - self._seen.get(counter, 0)))
        self._seen[counter] = total

    def _of_model(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return self._histogram(name, text, buckets, (MODEL,)).labels(self.model_name)

    def _counter(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(PREFIX + name, text, labels, registry=self.registry)

    def _gauge(self, name: str, text: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(PREFIX + name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()) -> Histogram:
        return Histogram(PREFIX + name, text, labels, buckets=buckets, registry=self.registry)
