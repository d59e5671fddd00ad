"""Everything /metrics shows, in a registry of its own; names stay close to vLLM's. Measures and decides nothing."""

import platform
from collections.abc import Callable, Iterable

from prometheus_client import Counter, Histogram, ProcessCollector, generate_latest

from configs.version import commit
from model.engine.messages import EngineStats, StepDone
from server.metrics.children import ChildMetrics, ChildSnapshot
from server.metrics.codes import FAULTS, FINISHED, REFUSALS
from server.metrics.edges import ANSWERS, FAST, FIRST_TOKEN, SLOW, STEP, STEP_TOKENS, TOKENS, WORK
from server.metrics.recent import RecentErrors, SlowRequests
from server.metrics.registry import PrefixedRegistry
from shm import PoolStats

MODEL = "model_name"
MALFORMED = "malformed"  # the route of bytes that are no HTTP


class Metrics:
    """Counters and histograms that requests feed, and gauges that are set when somebody looks.

    Those of one request to the model are fed by its ModelTimings. What vLLM labels with the model's name has it here.
    """

    def __init__(self, model_name: str, version: str) -> None:
        new = self.registry = PrefixedRegistry()
        self.model_name = model_name
        self._lines_dropped: Callable[[], int] = int
        self._series: dict[tuple[str, str, str], tuple[Counter, Histogram]] = {}  # of answers, by their labels
        ProcessCollector(registry=self.registry)
        labels = ("version", "commit", "python_version")
        build = new.gauge("build_info", "1; which build runs is in the labels.", labels)
        build.labels(version, commit(), platform.python_version()).set(1)
        self._add_http(new)
        self._add_requests(new)
        self._add_engine(new)
        self._add_memory(new)
        self.children = ChildMetrics(new)
        self.errors = RecentErrors()
        self.slow = SlowRequests()

    def _add_http(self, new: PrefixedRegistry) -> None:
        labels = ("method", "route", "status")
        self._answers = new.counter("http_requests", "HTTP requests that ended, by the route's template.", labels)
        self._answer_seconds = new.histogram(
            "http_request_duration_seconds", "From an HTTP request's first byte to its answer's last.", ANSWERS, labels
        )
        self._rejected = new.counter(
            "mm_rejected", "Requests that ended with an error, by the error's code.", ("reason",)
        )
        self._inflight = new.gauge("mm_inflight_bytes", "Bytes of request bodies that are held now.")
        self._connections = new.gauge("http_connections", "Connections that are open.")
        self._unread = new.gauge("mm_unread_bytes", "Bytes of answers that no client has taken yet.")
        self._dropped = new.counter(
            "log_lines_dropped", "Log lines that were not read in time or could not be written."
        )

    def _add_requests(self, new: PrefixedRegistry) -> None:
        name = self.model_name
        self._ended = new.counter("request_success", "Requests that ended, by how.", (MODEL, "finished_reason"))
        self._of_end = {reason: self._ended.labels(name, reason) for reason in (*FINISHED, *FAULTS, *REFUSALS)}
        self.prompt_tokens = new.counter("prompt_tokens", "Tokens of prompts and media.", (MODEL,)).labels(name)
        self.generation_tokens = new.counter("generation_tokens", "Sampled tokens.", (MODEL,)).labels(name)
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
        self.share_wait = new.histogram(
            "client_share_wait_seconds", "What a request waited for a worker and for its first step, by whether "
            "its client had nothing else here, at most a fair share of the places, or more.", SLOW, (MODEL, "share"),
        )  # fmt: skip
        for share in ("first", "within", "beyond"):
            self.share_wait.labels(name, share)
        self._gave_way = new.counter(
            "client_share_gave_way", "What made room for clients that had less than their share, by what was scarce.",
            ("of",),
        )  # fmt: skip
        for of in ("places", "shared_memory", "bodies", "fetches"):
            self._gave_way.labels(of)
        self.prefill = self._of_model(
            "request_prefill_time_seconds", "From its first step to the first token.", FIRST_TOKEN
        )
        self.encode = self._of_model(
            "request_encode_time_seconds", "Of its prefill, the encoders' runs over its media.", FIRST_TOKEN
        )
        self.decode = self._of_model("request_decode_time_seconds", "From the first token to the last.", SLOW)
        self.preprocess = new.histogram(
            "mm_preprocess_seconds", "Time of a worker, by modality and stage.", WORK, ("modality", "stage")
        )

    def _add_engine(self, new: PrefixedRegistry) -> None:
        name = self.model_name
        self._stats: EngineStats | None = None  # the engine's latest snapshot, which counts from its start
        self._of_stats = {"gave_way": self._gave_way.labels("seats")}  # counters of the engine's snapshots, by field
        for field, metric, text in (
            ("preemptions", "num_preemptions", "Sequences that gave up their cache."),
            ("prefix_queries", "prefix_cache_queries", "Tokens of prompts that were looked for in the KV cache."),
            ("prefix_hits", "prefix_cache_hits", "Of these, those that were there and not computed."),
            ("mm_cache_queries", "mm_cache_queries", "Media let in."),
            ("mm_cache_hits", "mm_cache_hits", "Media not encoded again."),
        ):
            self._of_stats[field] = new.counter(metric, text, (MODEL,)).labels(name)
        self._running = new.gauge("num_requests_running", "Sequences in the engine's batch.", (MODEL,)).labels(name)
        self._waiting = new.gauge("num_requests_waiting", "Requests that wait, by where.", (MODEL, "place"))
        text = "Share of the KV cache's blocks that requests hold."
        self._kv_usage = new.gauge("kv_cache_usage_perc", text, (MODEL,)).labels(name)
        self._iteration_tokens = self._of_model("iteration_tokens", "Tokens that one step computed.", STEP_TOKENS)
        self._steps = new.histogram("engine_step_seconds", "Time of an engine step, by stage.", STEP, ("stage",))
        self._of_stage: dict[str, Histogram] = {}  # its series
        self._embeddings = new.gauge("mm_embedding_bytes", "Encoder outputs that unfinished requests reserve.")
        self._kept = new.gauge("mm_cache_bytes", "Encoder outputs that a request with the same media may take.")
        self._ready = new.gauge("ready", "1 while /health/ready answers 200, else 0.")
        self._canaries = new.counter("canaries", "Requests for one token of the server's own.", ("result",))
        for result in ("answered", "late", "failed"):
            self._canaries.labels(result)

    def _add_memory(self, new: PrefixedRegistry) -> None:
        self._shm = new.gauge("shm_bytes", "Shared memory of the pool, by state.", ("state",))
        self._shm_capacity = new.gauge("shm_bytes_capacity", "Shared memory that the pool may hold.")
        self._others = new.gauge("shm_others_bytes", "Part of that which files of others keep from the pool.")
        self._segments = new.gauge("shm_segments", "Segments of the pool, by state.", ("state",))
        self._path_files = new.gauge("shm_path_files", "Path files of requests that hold leases.")
        self._swept = new.counter("shm_swept_bytes", "Shared memory of dead owners that was freed.")

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
        (self._of_end.get(how) or self._ended.labels(self.model_name, how)).inc()

    def malformed(self, status: int) -> None:
        """Bytes came that are no HTTP request, or never became one; they were answered with `status`."""
        self._answers.labels("other", MALFORMED, str(status)).inc()

    def reject(self, reason: str) -> None:
        """A request ended with an error of that code."""
        self._rejected.labels(reason).inc()

    def restart(self, role: str) -> None:
        """A child of that role ended and is started again."""
        self.children.restart(role)
        if role == "engine":  # it counts from zero
            self._grow_by_stats()
            self._stats = None
            for counter in self._of_stats.values():
                self.registry.begin_again(counter)

    def gave_way(self, of: str) -> None:
        """A request made room for one of a client that had less than its share."""
        self._gave_way.labels(of).inc()

    def canary(self, result: str) -> None:
        """The engine was asked for one token by the server itself."""
        self._canaries.labels(result).inc()

    def swept(self, nbytes: int) -> None:
        """The sweeper freed what a dead owner had left."""
        self._swept.inc(nbytes)

    def step(self, step: StepDone) -> None:
        """The engine ran a step."""
        for stage, spent in step.seconds.items():
            series = self._of_stage.get(stage)
            if series is None:
                series = self._of_stage[stage] = self._steps.labels(stage)
            series.observe(spent)
        self._iteration_tokens.observe(step.n_tokens)
        self._stats = step.stats

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
        self, *, waiting: Iterable[tuple[str, int]], children: Iterable[ChildSnapshot],
        body_bytes: int, ready: bool,
    ) -> None:  # fmt: skip
        """waiting: (place, requests); children: each that there should be."""
        for place, n in waiting:
            self._waiting.labels(self.model_name, place).set(n)
        self.children.look(children)
        self._ready.set(ready)
        self._inflight.set(body_bytes)

    def render(self) -> bytes:
        self.registry.grow(self._dropped, self._lines_dropped())
        self._grow_by_stats()
        return generate_latest(self.registry)

    def _grow_by_stats(self) -> None:
        """Bring the counters to what the engine last said: they are read at a look alone."""
        if self._stats is not None:
            for name, counter in self._of_stats.items():
                self.registry.grow(counter, getattr(self._stats, name))

    def _of_model(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return self.registry.histogram(name, text, buckets, (MODEL,)).labels(self.model_name)
