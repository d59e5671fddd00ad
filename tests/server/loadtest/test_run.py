"""Whole runs against an endpoint with fixed delays: what is measured, what is noticed, and how a run ends early."""

import asyncio
from typing import Any

import pytest

from server.loadtest.driving.target import TargetError
from server.loadtest.options import read_options
from server.loadtest.plans import plans_of
from server.loadtest.results.hit_rates import HitRate
from server.loadtest.results.result import RunResult
from server.loadtest.run import LoadTest
from tests.server.loadtest.examples import IDLE
from tests.server.loadtest.fixed_delays import Delays, running
from tests.server.loadtest.simulated_clock import run_simulated
from tests.tables import each_of

FAST: dict[str, Any] = {"first": 0.002, "between": 0.001}


def run(delays: Delays, *flags: str, interrupt_after: int | None = None) -> RunResult:
    """interrupt_after: so many requests have come."""

    async def go() -> RunResult:
        async with running(delays) as endpoint:
            options = read_options(["--quiet", "--url", endpoint.url, "--settle", "100ms", *flags])
            interrupt = asyncio.Event()

            async def interrupting() -> None:
                while interrupt_after is None or len(delays.seen) < interrupt_after:
                    await asyncio.sleep(0.01)
                interrupt.set()

            watching = asyncio.create_task(interrupting())
            try:
                return await LoadTest(options, plans_of(options)).run(interrupt)
            finally:
                watching.cancel()

    return run_simulated(go())


def test_a_closed_loop_sends_all_and_measures_all() -> None:
    delays = Delays(first=0.01, between=0.002)
    result = run(delays, "--requests", "12", "--concurrency", "3", "--max-tokens", "4", "--warmup", "2")
    (step,) = result.steps
    assert (step.summary.requests, step.summary.answered, step.summary.output_tokens) == (12, 12, 48)
    assert len(delays.seen) == 14, "two more before the clock starts"
    ttft, e2el = step.summary.latencies["ttft"], step.summary.latencies["e2el"]
    assert (ttft["min"], ttft["max"]) == pytest.approx((0.01, 0.01))
    assert (e2el["min"], e2el["max"]) == pytest.approx((0.016, 0.016)), "three tokens more, 2 ms each"
    assert delays.connections <= 7, "connections are kept: three, and one for each look at the server"
    assert result.model == "fixed" and delays.seen[0]["model"] == "fixed"
    assert result.failures == [] and result.leak == "unknown"


def test_an_open_loop_keeps_its_times() -> None:
    result = run(Delays(**FAST), "--rate", "100", "--arrivals", "constant", "--requests", "20", "--ramp", "100ms")
    records = result.steps[0].records
    assert [record.index for record in records] == list(range(20))
    assert [record.wait for record in records] == pytest.approx([0.0] * 20, abs=1e-9)
    assert sum(not record.measured for record in records) == 5, "half of the ramp's rate for its time"
    assert result.steps[0].summary.requests == 15


def test_a_sweep_has_a_step_for_each_load() -> None:
    result = run(Delays(**FAST), "--concurrency", "1,2", "--requests", "4", "--slo", "ttft=10s")
    assert [(step.label, step.summary.requests) for step in result.steps] == [("1 streams", 4), ("2 streams", 4)]
    assert {record.step for record in result.steps[1].records} == {1}
    assert result.knee is not None and result.knee.label == "2 streams"


@each_of(
    ("leak", "name"),
    [('shm_bytes{state="leased"}', "leased shared memory, bytes"), ("process_open_fds", "open descriptors")],
)
def test_a_planted_leak_turns_the_verdict(leak: str, name: str) -> None:
    flags = ("--requests", "6", "--warmup", "0")
    honest = run(Delays(**FAST, metrics=dict(IDLE)), *flags)
    told = {one.name: one.verdict for one in honest.findings}
    assert told.pop("memory of the server process") == told.pop("memory of process engine") == "unknown"
    assert set(told.values()) == {"clean"} and honest.leak == "unknown", "too short a run for its memory"
    result = run(Delays(**FAST, metrics=dict(IDLE), leak=leak), *flags)
    assert result.leak == "leaked"
    assert result.failures == [f"leak: {name}: 6000 more than before"]


def test_hit_rates_are_those_of_the_run_by_the_servers_counters() -> None:
    counted = {"prefix_cache_queries_total": 40.0, "prefix_cache_hits_total": 10.0}
    counted |= {'mm_cache_queries_total{engine="0"}': 0.0, "mm_cache_hits_total": 0.0}
    delays = Delays(**FAST, metrics={**IDLE, **dict.fromkeys(counted, 3000.0)}, counted=counted)
    found = run(delays, "--requests", "6", "--warmup", "4").hit_rates
    assert found["tokens"] == HitRate(queries=240.0, hits=60.0, rate=0.25, says="25.0% (60 of 240)")
    assert found["media"] == HitRate(queries=0.0, hits=0.0, says="nothing was looked for")
    assert {one.says for one in run(Delays(**FAST), "--requests", "2").hit_rates.values()} == {"unknown"}


def test_requirements_that_are_missed_fail() -> None:
    flags = ("--requests", "6", "--require", "ttft.p50<=1ms", "--require", "errors<=1%")
    result = run(Delays(**{**FAST, "first": 0.01}), *flags)
    assert result.failures == ["missed in 4 streams: ttft.p50<=1ms"]
    assert [one.met for one in result.outcomes] == [False, True]


def test_cancellations_are_neither_errors_nor_answers() -> None:
    flags = ("--requests", "8", "--cancel", "100%", "--cancel-within", "20ms", "--warmup", "0")
    result = run(Delays(first=30), *flags)
    summary = result.steps[0].summary
    assert (summary.cancelled, summary.failed, summary.answered) == (8, 0, 0)


def test_errors_are_counted_by_their_names() -> None:
    result = run(Delays(status=429), "--requests", "5", "--warmup", "0")
    assert result.steps[0].summary.errors == {"429 queue_full": 5}
    assert result.failures == ["more than 0.01 of the requests failed", "no request was answered"]


def test_a_target_that_answers_nothing_before_the_start_is_not_loaded() -> None:
    with pytest.raises(TargetError, match="not one of 4 requests before the start was answered: 500"):
        run(Delays(status=500), "--requests", "5")


def test_an_interrupted_run_keeps_what_it_has() -> None:
    result = run(Delays(**FAST), "--rate", "20", "--seconds", "1h", "--requests", "200", interrupt_after=10)
    (step,) = result.steps
    assert result.interrupted and 0 < step.summary.requests < 200
    assert any("interrupted" in note for note in result.notes)


@each_of("load", [("--concurrency", "2"), ("--rate", "50")])
def test_an_interruption_waits_for_no_answer(load: tuple[str, ...]) -> None:
    result = run(Delays(first=60), "--requests", "9", "--warmup", "0", *load, interrupt_after=2)
    (step,) = result.steps
    assert result.interrupted and step.summary.errors == {}, "that they have no answer is not the server's fault"
    assert step.summary.seconds < 30 and step.summary.cancelled == step.summary.requests >= 2


def test_wrong_answers_are_found() -> None:
    flags = ("--requests", "3", "--mix", "demo", "--max-tokens", "1", "--warmup", "0")
    result = run(Delays(**FAST, text="nonsense"), *flags)
    assert result.steps[0].summary.wrong == 3 and result.failures == ["3 wrong answers"]


def test_what_a_reader_should_know_is_noted() -> None:
    flags = ("--requests", "6", "--mix", "image", "--image-sizes", "16x16", "--distinct", "2", "--no-usage")
    notes = run(Delays(**FAST, usage=False), *flags).notes
    assert not any("sent before" in note for note in run(Delays(**FAST), *flags, "--shared-media", "2").notes)
    assert any("67% of the media had been sent before" in note for note in notes)
    assert any("no usage" in note for note in notes)
