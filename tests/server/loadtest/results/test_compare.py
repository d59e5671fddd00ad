"""Comparing two runs: the interval covers the truth as often as it says, and equal runs show no difference."""

import numpy as np
import pytest

from server.loadtest.results.compare import compare, compare_text, redrawn
from server.loadtest.results.result import RunResult
from tests.server.loadtest.examples import drawn, result_of


def one_step(seed: int, slower: float = 1.0, n: int = 200, label: str = "x") -> RunResult:
    return result_of([(label, 1.0, drawn(n, seed, slower=slower))])


def test_a_slower_run_is_seen_by_every_figure() -> None:
    found = compare(one_step(1), one_step(2, slower=1.5))["x"]
    assert {row.name for row in found} >= {"ttft p50", "ttft p99", "ttft mean", "tpot p50", "itl mean", "e2el p99"}
    medians = [row for row in found if row.name in ("ttft p50", "tpot p50", "e2el p50", "ttft mean")]
    assert {row.says for row in medians} == {"B is slower"}
    assert all(row.relative == pytest.approx(0.5, abs=0.15) and row.low <= row.b - row.a <= row.high for row in medians)
    assert all(row.worse_than(0.1) and not row.worse_than(0.9) for row in medians)
    turned = compare(one_step(2, slower=1.5), one_step(1))["x"]
    assert next(row for row in turned if row.name == "ttft p50").says == "B is faster"


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    """For independent values: against s / sqrt(n), within the noise of 2,000 draws and of short blocks."""
    values = np.random.default_rng(5).normal(10, 2, 400)
    means = redrawn(np.random.default_rng(0), values)[2]
    assert means.std() == pytest.approx(values.std(ddof=1) / 20, rel=0.25)


def test_neighbours_that_are_alike_widen_the_interval() -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 1, 1000)
    alike = np.array([noise[max(0, i - 9) : i + 1].mean() for i in range(1000)]) + 10
    spread = redrawn(np.random.default_rng(0), alike)[2].std()
    assert spread > 1.8 * alike.std(ddof=1) / np.sqrt(1000), "single requests drawn would say so and be wrong"


def test_equal_servers_are_seldom_called_different() -> None:
    """5 % of the time, by what the interval promises; four times as often fails."""
    said = []
    for seed in range(20):
        found = {row.name: row for row in compare(one_step(seed, n=40), one_step(1000 + seed, n=40))["x"]}
        said.append(found["ttft mean"].says != "no difference shown")
    assert sum(said) <= 4


def test_few_values_say_nothing() -> None:
    assert compare(one_step(1, n=5), one_step(2, n=5)) == {"x": []}


def test_steps_are_paired_by_their_names() -> None:
    swept = result_of([("1", 1.0, drawn(20)), ("2", 2.0, drawn(20))])
    assert list(compare(swept, result_of([("2", 2.0, drawn(20, 3))]))) == ["2"]
    assert list(compare(one_step(1, label="a"), one_step(2, label="b"))) == ["b"]
    with pytest.raises(ValueError, match="no step in common"):
        compare(swept, result_of([("8", 8.0, drawn(20))]))


def test_the_text_has_its_method() -> None:
    text = compare_text(compare(one_step(1), one_step(2)))
    assert "moving block bootstrap" in text and "95 %" in text and "ttft p50" in text
