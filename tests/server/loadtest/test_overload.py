"""Figures in overload and in failure: objectives from when a request was due, rates beside a hang, drops told."""

import pytest

from server.loadtest.options import read_options
from server.loadtest.plans import plans_of
from tests.server.loadtest.fixed_delays import Delays
from tests.server.loadtest.test_run import run
from tests.tables import each_of


def test_a_bound_on_requests_in_flight_hides_no_queue() -> None:
    """40 requests a second at a server that answers 10 of them, one after the other."""
    flags = ("--rate", "20,40", "--arrivals", "constant", "--requests", "20", "--max-in-flight", "1", "--warmup", "0")
    result = run(Delays(first=0.1), *flags, "--no-stream", "--slo", "e2el=300ms", "--require", "good_share>=90%")
    for step in result.steps:
        slowest, waited = step.summary.latencies["e2el"]["max"], step.summary.latencies["wait"]["max"]
        assert step.summary.answered == 20 and slowest < waited, "each by itself is faster than it waited"
        assert step.summary.good_share < 0.3 and waited > 0.9 and slowest == pytest.approx(0.1)
        assert step.summary.request_rate == pytest.approx(10)
    assert result.knee is None and len(result.failures) == 2


def test_what_a_bound_holds_back_to_the_end_is_told_and_keeps_nothing() -> None:
    flags = ("--rate", "50", "--arrivals", "constant", "--requests", "10", "--max-in-flight", "1", "--warmup", "0")
    summary = run(Delays(first=30), *flags, "--grace", "100ms", "--slo", "ttft=1s").steps[0].summary
    assert summary.errors == {"never sent": 9, "unfinished": 1} and summary.good_share == 0


@each_of("objective", ["tpot=10s", "ttft=10s", "itl=10s", "queue=10s"])
def test_what_was_not_measured_is_not_kept(objective: str) -> None:
    summary = run(Delays(first=0.001), "--requests", "4", "--no-stream", "--slo", objective).steps[0].summary
    assert (summary.answered, summary.good_share, summary.goodput) == (4, 0, 0)


@each_of("load", [("--rate", "20", "--arrivals", "constant"), ("--concurrency", "4")])
def test_one_that_hangs_changes_no_rate_and_is_named(load: tuple[str, ...]) -> None:
    """Its two seconds would have made 40 requests of one second 13 a second."""
    flags = ("--requests", "40", "--warmup", "0", "--max-tokens", "1", "--timeout", "2s")
    delays = Delays(first=0.1, hang=frozenset({7}))
    result = run(delays, *load, *flags)
    (step,) = result.steps
    assert step.summary.errors == {"timeout": 1} and step.summary.answered == 39
    true = 20 if load[0] == "--rate" else 30  # three of the four streams, ten answers a second each
    assert step.summary.request_rate == pytest.approx(true, rel=0.05)
    assert any(
        "1 requests had no end in time and are in no rate: number 7 (32 words, 2.0 s)" in n for n in result.notes
    )


def test_an_open_loops_rate_is_that_of_its_window() -> None:
    """What the ramp sent and what ended within counts; what ends later does not."""
    flags = ("--rate", "50", "--arrivals", "constant", "--seconds", "1500ms", "--ramp", "500ms", "--max-tokens", "1")
    (step,) = run(Delays(first=0.2), *flags, "--warmup", "0").steps
    assert step.summary.seconds == pytest.approx(1.0, abs=0.02)
    assert step.summary.request_rate == pytest.approx(48, abs=0.9), "while the rate rose 0.2 s ago, it was below 50"


def test_what_a_server_drops_is_told_and_not_sent_again() -> None:
    delays = Delays(first=0.002, between=0.0, drop_every=5)
    summary = run(delays, "--requests", "20", "--warmup", "0", "--concurrency", "1").steps[0].summary
    assert summary.errors == {"connection closed": 4} and len(delays.seen) == 20


@each_of(
    "load",
    [
        ("--rate", "4", "--ramp", "10s", "--requests", "15"), ("--rate", "4", "--ramp", "10s", "--seconds", "8s"),
        ("--concurrency", "4", "--ramp", "1s", "--requests", "4"),
        ("--concurrency", "4", "--ramp", "2s", "--seconds", "2s"),
    ],
)  # fmt: skip
def test_a_ramp_that_is_longer_than_its_requests_is_told_before_it_starts(load: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="no request would be measured: none is due behind --ramp"):
        plans_of(read_options([*load]))
