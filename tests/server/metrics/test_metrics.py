"""What requests feed comes out under its documented name, and every metric is documented."""

import platform
import re
from pathlib import Path

import msgspec

from model.engine.messages import EngineStats, StepDone
from server.metrics import PREFIX, Metrics
from server.report import describe_engine, pool_note, size
from server.request_context import ModelTimings, RequestContext
from shm import PoolStats
from tests.server.doubles import STATS, value_of
from tests.tables import each_of

REPO = Path(__file__).resolve().parents[3]


def test_a_step_is_told_by_stage() -> None:
    metrics = Metrics("tiny", "1.2.3")
    metrics.step(StepDone(tokens=(), stats=STATS, seconds={"encode": 0.5, "prefill": 0.25, "sample": 0.1}, n_tokens=40))
    metrics.step(StepDone(tokens=(), stats=STATS, seconds={"decode": 0.1, "sample": 0.001}, n_tokens=2))
    assert value_of(metrics, "iteration_tokens_count") == 2 and value_of(metrics, "iteration_tokens_sum") == 42
    assert value_of(metrics, 'engine_step_seconds_count{stage="sample"}') == 2
    assert value_of(metrics, 'engine_step_seconds_sum{stage="encode"}') == 0.5


def test_what_takes_minutes_has_a_bucket_and_vllms_edges_stay() -> None:
    """A video, or a step with a large picture on a CPU, takes more than the 2.5 s at which the buckets ended."""
    metrics = Metrics("tiny", "1.2.3")
    metrics.preprocess.labels("video", "decode")
    metrics.step(StepDone(tokens=(), stats=STATS, seconds={"encode": 100.0}, n_tokens=1))
    for labels in ('engine_step_seconds_bucket{le="%s",stage="encode"}',):
        assert [value_of(metrics, labels % le) for le in ("2.5", "80.0", "160.0")] == [0, 0, 1]
    text = metrics.render().decode()
    for name, last in (("mm_preprocess", "160.0"), ("inter_token_latency", "2.5"), ("time_to_first_token", "2560.0")):
        edges = re.findall(rf'pixelferry:{name}_seconds_bucket{{le="([0-9.]+)"', text)
        assert edges[-1] == last, name


@each_of(
    ("field", "name"),
    [
        ("preemptions", "num_preemptions_total"),
        ("prefix_queries", "prefix_cache_queries_total"),
        ("prefix_hits", "prefix_cache_hits_total"),
        ("gave_way", 'client_share_gave_way_total{of="seats"}'),
    ],
)
def test_what_an_engine_counts_is_counted_over_all_engines(field: str, name: str) -> None:
    metrics = Metrics("tiny", "1.2.3")
    for n in (0, 2, 2, 3):
        metrics.step(StepDone(tokens=(), stats=msgspec.structs.replace(STATS, **{field: n}), seconds={}))
    metrics.restart("worker")
    metrics.set_engine(None)
    assert value_of(metrics, name) == 3
    metrics.restart("engine")
    metrics.step(StepDone(tokens=(), stats=msgspec.structs.replace(STATS, **{field: 3}), seconds={}))
    assert value_of(metrics, name) == 6


def test_media_from_the_cache_are_counted_over_all_engines() -> None:
    metrics = Metrics("tiny", "1.2.3")
    for queries, hits in ((2, 0), (3, 1)):
        stats = msgspec.structs.replace(STATS, mm_cache_queries=queries, mm_cache_hits=hits)
        metrics.step(StepDone(tokens=(), stats=stats, seconds={}))
    metrics.restart("engine")
    metrics.step(StepDone(tokens=(), stats=msgspec.structs.replace(STATS, mm_cache_queries=1), seconds={}))
    metrics.set_engine(STATS, 7)
    assert value_of(metrics, "mm_cache_queries_total") == 4 and value_of(metrics, "mm_cache_hits_total") == 1
    assert value_of(metrics, "mm_cache_bytes") == 7
    metrics.set_engine(None)
    assert value_of(metrics, "mm_cache_bytes") == 0


def test_answers_are_counted_by_method_route_and_status() -> None:
    metrics = Metrics("tiny", "1.2.3")
    metrics.answered("POST", "/chat", 200, 0.3)
    metrics.answered("POST", "/chat", 400, 0.01)
    metrics.malformed(400)
    assert value_of(metrics, 'http_requests_total{method="POST",route="/chat",status="200"}') == 1
    assert value_of(metrics, 'http_requests_total{method="other",route="malformed",status="400"}') == 1
    seconds = 'http_request_duration_seconds_sum{method="POST",route="/chat",status="400"}'
    assert value_of(metrics, seconds) == 0.01


def test_process_build_and_model_are_named() -> None:
    text = Metrics("tiny", "1.2.3").render().decode()
    build = (
        f'pixelferry:build_info{{commit="unknown",python_version="{platform.python_version()}",version="1.2.3"}} 1.0'
    )
    assert build in text.splitlines()
    assert "\nprocess_resident_memory_bytes " in text and "\nprocess_cpu_seconds_total " in text
    assert 'pixelferry:time_to_first_token_seconds_bucket{le="0.001",model_name="tiny"} 0.0' in text.splitlines()
    assert 'pixelferry:request_success_total{finished_reason="stop",model_name="tiny"} 0.0' in text.splitlines()


def test_no_series_tells_when_it_was_created() -> None:
    assert b"_created" not in Metrics("tiny", "1.2.3").render()


def test_errors_and_refusals() -> None:
    metrics = Metrics("tiny", "1.2.3")
    ModelTimings(metrics, RequestContext()).end("error")
    metrics.reject("memory_full")
    assert value_of(metrics, 'mm_rejected_total{reason="memory_full"}') == 1
    assert value_of(metrics, "e2e_request_latency_seconds_count") == 0


def test_gauges_show_the_last_snapshot_and_zero_for_a_dead_engine() -> None:
    metrics = Metrics("tiny", "1.2.3")
    metrics.set_engine(STATS)
    assert value_of(metrics, "kv_cache_usage_perc") == 0.1 and value_of(metrics, "num_requests_running") == 1
    metrics.set_engine(None)
    assert value_of(metrics, "kv_cache_usage_perc") == 0 and value_of(metrics, "num_requests_running") == 0
    metrics.set_engine(EngineStats(
        running=0, waiting=0, kv_blocks_used=0, kv_blocks_total=0, preemptions=3, embedding_bytes=5
    ))  # fmt: skip
    assert value_of(metrics, "mm_embedding_bytes") == 5
    metrics.set_pool(PoolStats(
        capacity=9, leased_bytes=4, leases=1, idle_bytes=3, segments=3, total_bytes=7, path_files=2
    ))  # fmt: skip
    assert value_of(metrics, 'shm_bytes{state="leased"}') == 4 and value_of(metrics, 'shm_segments{state="idle"}') == 2
    assert value_of(metrics, "shm_path_files") == 2 and value_of(metrics, "shm_bytes_capacity") == 9


def test_every_metric_is_documented() -> None:
    page = (REPO / "docs" / "operations.md").read_text()
    names = {
        family.name + "_total" * (family.type == "counter") for family in Metrics("tiny", "1.2.3").registry.collect()
    }
    assert len(names) > 20
    missing = [name for name in sorted(names) if f"`{name.removeprefix(PREFIX)}" not in page]
    assert not missing
    assert PREFIX == "pixelferry:" and f"the prefix `{PREFIX}`" in page


def test_sizes_as_people_read_them() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1 << 20, 3 << 29)] == ["0 B", "1023 B", "1 KiB", "1 MiB", "1.5 GiB"]


def test_the_engine_says_when_its_cache_is_shorter_than_asked() -> None:
    from model.engine.messages import EngineReady

    ready = EngineReady(
        device="cpu", dtype="float32", vocab_size=1, kv_blocks=4, block_size=16,
        memory=(("weights", 2048, "--dtype"),), max_media_tokens=64,
    )  # fmt: skip
    assert "one request may have 64" in describe_engine(ready, 65, 1 << 30)
    assert "one request" not in describe_engine(ready, 64, 1 << 30)
    assert (
        describe_engine(ready, 64, 1 << 30).split("\n")[-1].split() == "shared memory, at most 1 GiB --shm-mib".split()
    )
    assert "weights" in describe_engine(ready, 64, 1 << 30) and "2 KiB" in describe_engine(ready, 64, 1 << 30)


def test_too_little_shared_memory_is_said_at_start() -> None:
    assert (
        pool_note(1 << 30, 64 << 20)
        == "at most 64 MiB, all there is, instead of --shm-mib's 1 GiB (docker run --shm-size)"
    )
    assert pool_note(1 << 30, 1 << 30) == "at most 1 GiB"
