"""The times of one request, the arithmetic of a run against numpy and written sums, and bounds on its figures."""

import random
import statistics

import numpy as np
import pytest

from server.loadtest.results.measures import (
    QUANTILES,
    Record,
    keeps,
    outcomes,
    read_requirement,
    spread,
    summarise,
)
from tests.server.loadtest.examples import drawn
from tests.server.tables import each_of


def record(
    index: int = 0, sent: float = 0.0, first: float = 0.1, last: float = 0.4, tokens: int = 4, **more: object
) -> Record:
    """An answer in even gaps."""
    events = tokens
    gaps = [(last - first) / max(1, events - 1)] * (events - 1)
    fields: dict[str, object] = dict(
        index=index, due=sent, sent=sent, first=sent + first, last=sent + last, ended=sent + last, events=events,
        gaps=gaps, prompt_tokens=10, output_tokens=tokens, status=200, finish="stop",
    )  # fmt: skip
    return Record(**{**fields, **more})  # type: ignore[arg-type]


@each_of("n", [1, 2, 3, 7, 100, 1001])
def test_percentiles_are_numpys(n: int) -> None:
    rng = random.Random(n)
    values = [rng.lognormvariate(0, 1) for _ in range(n)]
    ours = [spread(values)[f"p{q:g}"] for q in QUANTILES]
    assert ours == pytest.approx(np.percentile(values, QUANTILES).tolist(), rel=1e-12)


def test_a_percentile_is_on_the_line_between_two_values() -> None:
    """What the report says of its formula, type 7, written out."""
    assert spread([4.0, 1.0, 2.0, 3.0])["p25"] == pytest.approx(1 + 0.25 * 3)


def test_a_spread_is_that_of_the_statistics_module() -> None:
    values = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]
    found = spread(values)
    assert (found["n"], found["min"], found["max"]) == (8, 1.0, 9.0)
    assert (found["mean"], found["p50"]) == (statistics.fmean(values), statistics.median(values))
    assert spread([2.0])["p99.9"] == 2.0


def test_a_summary_counts_each_kind_of_end_once() -> None:
    good = [record(index, sent=float(index)) for index in range(4)]
    others = [
        record(4, sent=1.0, error="429 queue_full"),
        record(5, sent=1.0, error="429 queue_full"),
        record(6, sent=1.0, error="timeout"),
        record(7, sent=1.0, cancelled=True),
        record(8, sent=-50.0, measured=False),
    ]
    found = summarise(good + others, {})
    assert (found.requests, found.answered, found.failed, found.cancelled) == (8, 4, 3, 1)
    assert found.errors == {"429 queue_full": 2, "timeout": 1}
    assert list(found.errors)[0] == "429 queue_full"
    assert found.seconds == pytest.approx(3.4)  # from the first sending at 0 to the last end at 3.4
    assert found.request_rate == pytest.approx(4 / 3.4)
    assert (found.prompt_tokens, found.output_tokens) == (40, 16)
    assert found.output_rate == pytest.approx(16 / 3.4)
    assert found.concurrency == pytest.approx(4 * 0.4 / 3.4)
    assert found.latencies["ttft"]["n"] == 4 and found.latencies["itl"]["n"] == 12
    assert found.latencies["wait"]["n"] == 8


def test_goodput_asks_for_every_objective_of_answered_requests_alone() -> None:
    fast, slow_start, slow_end = record(0), record(1, first=0.3), record(2, last=2.0)
    failed, left = record(3, error="timeout"), record(4, cancelled=True)
    objectives = {"ttft": 0.2, "e2el": 1.0}
    assert [keeps(one, objectives) for one in (fast, slow_start, slow_end, failed, left)] == [True, *[False] * 4]
    assert keeps(record(5, gaps=[0.01, 0.2]), {"itl": 0.1}) is False, "one long gap breaks it"
    found = summarise([fast, slow_start, slow_end, failed, left], objectives)
    assert found.good_share == 1 / 4
    assert found.goodput == pytest.approx(1 / found.seconds)


def test_an_objective_is_kept_at_its_bound() -> None:
    assert keeps(record(first=0.25, last=0.5), {"ttft": 0.25})


def test_checked_answers_are_counted() -> None:
    found = summarise([record(0, correct=True), record(1, correct=False), record(2)], {})
    assert (found.checked, found.wrong) == (2, 1)


def test_stages_are_spread_over_the_requests_that_have_them() -> None:
    stages = [{"queue": 0.1, "prefill": 0.2}, {"queue": 0.3}, {}]
    found = summarise([record(i, stages=one) for i, one in enumerate(stages)], {})
    assert found.stages["queue"]["n"] == 2 and found.stages["prefill"]["n"] == 1
    assert found.latencies["queue"]["mean"] == pytest.approx(0.2)


def test_nothing_measured_is_an_empty_summary() -> None:
    found = summarise([record(measured=False)], {})
    assert (found.requests, found.answered, found.request_rate, found.latencies) == (0, 0, 0.0, {})


def test_latencies_of_one_request() -> None:
    one = record(sent=2.0, first=0.25, last=1.0, tokens=4, due=1.5)
    assert (one.wait, one.ttft, one.e2el) == (0.5, 0.25, 1.0)
    assert one.tpot == pytest.approx(0.75 / 3)


def test_who_has_no_second_token_has_no_time_per_token() -> None:
    assert record(tokens=1, last=0.1).tpot is None
    assert record(first=0.1, output_tokens=None).tpot is None
    silent = Record(index=0)
    assert (silent.ttft, silent.tpot, silent.e2el) == (None, None, None)


SUMMARY = summarise([*drawn(19), Record(index=19, sent=0.0, error="timeout")], {"ttft": 10.0})


@each_of(
    ("text", "bound"),
    [
        ("ttft.p99<=500ms", 0.5),
        ("e2el.mean < 2s", 2.0),
        ("errors<=1%", 0.01),
        ("goodput>=5", 5.0),
        ("itl.p99.9<1", 1.0),
    ],
)
def test_units_are_seconds_and_shares(text: str, bound: float) -> None:
    assert read_requirement(text).bound == bound


@each_of(
    "text",
    ["", "ttft<=5", "ttft.p98<=5", "speed>=1", "errors", "errors=0", "errors.p50<1", "ttft.p50<=x", "goodput>=1.2.3"],
)
def test_what_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        read_requirement(text)


@each_of(
    ("text", "met"),
    [
        ("errors<=5%", True), ("errors<5%", False), ("failed<=1", True), ("failed<1", False), ("wrong<=0", True),
        ("ttft.p99<=10s", True), ("ttft.p99<=1ms", False), ("ttft.max>=1ms", True), ("answered>=19", True),
        ("answered>19", False), ("good_share>=0.95", True), ("good_share>0.95", False), ("tpot.min>0", True),
    ],
)  # fmt: skip
def test_figures_are_compared_with_their_bounds(text: str, met: bool) -> None:
    (outcome,) = outcomes((read_requirement(text),), "4 streams", SUMMARY)
    assert outcome.met is met and outcome.step == "4 streams" and outcome.value is not None


@each_of("text", ["queue.p50<=1s", "errors<=100%", "ttft.p50>=0"])
def test_what_was_not_measured_is_not_met(text: str) -> None:
    (outcome,) = outcomes((read_requirement(text),), "x", summarise([], {}))
    assert outcome.value is None and not outcome.met
