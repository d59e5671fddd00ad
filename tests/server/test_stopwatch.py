"""What happens to one request is told to the metrics once, and its moments are kept in order."""

import time

import msgspec
import pytest

from server.metrics import Metrics
from server.stopwatch import Stopwatch, Tally
from tests.server.doubles import prepared, value_of


def test_one_good_request() -> None:
    metrics = Metrics("tiny", "1.2.3")
    tally = Tally()
    watch = Stopwatch(metrics, tally)
    seconds = {"image": {"decode": 0.02}, "prompt": {"render": 0.01}}
    watch.worker()
    watch.worker()
    watch.prompt(msgspec.structs.replace(prepared("chat-1", 12), seconds=seconds))
    watch.started()
    watch.tokens(1)
    watch.delivered()
    watch.tokens(2)
    watch.delivered()
    watch.end("stop")
    watch.end("abort")
    assert value_of(metrics, "prompt_tokens_total") == 12 and value_of(metrics, "generation_tokens_total") == 3
    assert value_of(metrics, 'request_success_total{finished_reason="stop"}') == 1
    assert value_of(metrics, 'request_success_total{finished_reason="abort"}') == 0
    stages = ("request_worker_queue_time", "request_queue_time", "request_prefill_time", "request_decode_time")
    for name in ("time_to_first_token", "e2e_request_latency", "inter_token_latency", *stages):
        assert value_of(metrics, f"{name}_seconds_count") == 1
    assert (
        value_of(metrics, "request_prompt_tokens_sum") == 12 and value_of(metrics, "request_generation_tokens_sum") == 3
    )
    assert (tally.prompt_tokens, tally.generation_tokens) == (12, 3) and tally.first_token is not None
    assert value_of(metrics, 'mm_preprocess_seconds_count{modality="image",stage="decode"}') == 1
    assert value_of(metrics, 'mm_preprocess_seconds_count{modality="prompt",stage="render"}') == 1


def test_the_first_token_is_timed_from_the_first_byte_to_its_delivery() -> None:
    metrics, tally = Metrics("tiny", "1.2.3"), Tally(received=time.monotonic() - 5)
    watch = Stopwatch(metrics, tally)
    watch.started()
    watch.tokens(1)
    assert value_of(metrics, "time_to_first_token_seconds_count") == 0
    watch.delivered()
    seconds = value_of(metrics, "time_to_first_token_seconds_sum")
    assert 5 <= seconds < 60 and tally.first_token is not None
    assert seconds == pytest.approx(tally.first_token - tally.received)
    watch.end("stop")
    assert 5 <= value_of(metrics, "e2e_request_latency_seconds_sum") < 60


def test_its_moments_are_in_order_and_those_that_never_came_are_none() -> None:
    tally = Tally()
    watch = Stopwatch(Metrics("tiny", "1.2.3"), tally)
    assert tally.watches == [watch]
    for tell in (watch.worker, lambda: watch.prompt(prepared("chat-1", 12)), watch.started, lambda: watch.tokens(1)):
        tell()
    watch.end("abort")
    moments = [watch.entered, watch.taken, watch.prepared, watch.placed, watch.first, watch.ended]
    assert all(moment is not None for moment in moments) and moments == sorted(moments, key=float)  # type: ignore[arg-type]
    assert (watch.reason, watch.n_prompt, watch.n_tokens) == ("abort", 12, 1)
    assert Stopwatch(Metrics("tiny", "1.2.3"), tally).taken is None and len(tally.watches) == 2


def test_the_stages_follow_one_another_from_the_first_byte_on() -> None:
    tally = Tally(received=time.monotonic() - 5)
    watch = Stopwatch(Metrics("tiny", "1.2.3"), tally)
    assert watch.stages == {}
    seconds = {"image": {"decode": 0.02}, "prompt": {"render": 0.01}}
    watch.prompt(msgspec.structs.replace(prepared("chat-1", 12), seconds=seconds))
    watch.started()
    watch.tokens(1)
    watch.tokens(1)
    stages = watch.stages
    assert list(stages) == ["prepare", "prepare.image.decode", "prepare.prompt.render", "queue", "prefill", "decode"]
    assert stages["prepare.image.decode"] == 0.02 and stages["prepare"] >= 5
    assert watch.last is not None
    parts = [stages[name] for name in ("prepare", "queue", "prefill", "decode")]
    assert sum(parts) == pytest.approx(watch.last - tally.received) and min(parts) >= 0
