"""Requirements: how they are read, what they look at, and that a figure which does not exist meets none."""

import pytest

from server.loadtest.results.measures import Record, summarise
from server.loadtest.results.requirements import outcomes, read_requirement
from tests.server.loadtest.examples import drawn

SUMMARY = summarise([*drawn(19), Record(index=19, sent=0.0, error="timeout")], {"ttft": 10.0})


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
    "text",
    ["", "ttft<=5", "ttft.p98<=5", "speed>=1", "errors", "errors=0", "errors.p50<1", "ttft.p50<=x", "goodput>=1.2.3"],
)
def test_what_cannot_be_read_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        read_requirement(text)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("text", ["queue.p50<=1s", "errors<=100%", "ttft.p50>=0"])
def test_what_was_not_measured_is_not_met(text: str) -> None:
    (outcome,) = outcomes((read_requirement(text),), "x", summarise([], {}))
    assert outcome.value is None and not outcome.met
