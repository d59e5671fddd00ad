"""Comparing two runs: intervals hold as often as they say, all rows together, and a real difference is told."""

from dataclasses import replace

import numpy as np
import pytest

from server.loadtest.results.compare import (
    COMPARED,
    STATISTICS,
    WRONG,
    Values,
    caches_text,
    compare,
    compare_text,
    difference,
    estimate,
)
from server.loadtest.results.hit_rates import HitRate
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


def alike(rng: np.random.Generator, n: int, rho: float, tail: bool) -> Values:
    """Values of which each has so much of the one before; tail: of log-normal ones, else of normal ones."""
    noise: Values = rng.standard_normal(n) * np.sqrt(1 - rho**2)
    noise[0] = rng.standard_normal()
    for place in range(1, n):
        noise[place] += rho * noise[place - 1]
    return np.asarray(np.exp(noise) if tail else noise + 10)


def claims(rng: np.random.Generator, sizes: tuple[int, int], rho: float, *, tail: bool, shift: float = 0) -> list[str]:
    """The rows of one comparison that claim a difference, of five latencies that know nothing of each other."""
    wrong = WRONG / (len(COMPARED) * len(STATISTICS))
    found = []
    for _ in COMPARED:
        first, second = (alike(rng, n, rho, tail) for n in sizes)
        for one in STATISTICS:
            row = difference(one, estimate(first, one), estimate(second + shift, one), wrong)
            found += [one] if row.low > 0 or row.high < 0 else []
    return found


def share(pairs: int, sizes: tuple[int, int], rho: float, *, tail: bool) -> tuple[float, float]:
    """Of pairs of equal runs: the highest share of false claims of a statistic, and the share with any at all."""
    rng = np.random.default_rng(7)
    said = [claims(rng, sizes, rho, tail=tail) for _ in range(pairs)]
    rows = max(sum(some.count(one) for some in said) / pairs / len(COMPARED) for one in STATISTICS)
    return rows, sum(bool(some) for some in said) / pairs


@pytest.mark.parametrize("rho", [0.0, 0.8])
def test_equal_servers_are_seldom_called_different_by_any_row(rho: float) -> None:
    """5 % by what the intervals promise; the bound of 60 pairs is the binomial's 99.9th percentile of that."""
    rows, anywhere = share(60, (200, 200), rho, tail=True)
    assert rows <= 0.05 and anywhere <= 9 / 60


@pytest.mark.long
@pytest.mark.parametrize("tail", [False, True])
@pytest.mark.parametrize("rho", [0.0, 0.8])
@pytest.mark.parametrize("sizes", [(100, 100), (200, 200), (500, 500), (1000, 1000), (1000, 300)])
def test_false_alarms_stay_below_seven_percent(sizes: tuple[int, int], rho: float, tail: bool) -> None:
    rows, anywhere = share(1000, sizes, rho, tail=tail)
    print(f"\n{sizes} rho {rho} {'log-normal' if tail else 'normal'}: rows {rows:.2%}, any row {anywhere:.2%}")
    assert max(rows, anywhere) <= 0.07


@pytest.mark.parametrize("pairs", [10, pytest.param(200, marks=pytest.mark.long)])
def test_a_shift_of_one_standard_deviation_is_told(pairs: int) -> None:
    """Of runs of 1,000 requests whose neighbours are alike, in the median and in the mean."""
    rng = np.random.default_rng(3)
    said = [claims(rng, (1000, 1000), 0.8, tail=False, shift=1.0) for _ in range(pairs)]
    for one in ("p50", "mean"):
        told = sum(some.count(one) for some in said) / pairs / len(COMPARED)
        print(f"\n{one}: {told:.1%}")
        assert told >= 0.8


def test_too_few_values_say_so() -> None:
    few = {row.name: row.says for row in compare(one_step(1, n=99), one_step(2, slower=9.0, n=99))["x"]}
    assert set(few.values()) == {"too few requests to say"} and len(few) == 15
    more = {row.name: row.says for row in compare(one_step(1), one_step(2, slower=9.0))["x"]}
    assert more["ttft p50"] == "B is slower" and more["ttft p99"] == "too few requests to say"


def test_what_never_varies_is_judged_by_what_it_is() -> None:
    same = {row.name: row for row in compare(one_step(1), one_step(2))["x"]}["queue mean"]
    assert (same.low, same.high, same.says) == (0.0, 0.0, "no difference shown")


def test_steps_are_paired_by_their_names() -> None:
    swept = result_of([("1", 1.0, drawn(20)), ("2", 2.0, drawn(20))])
    assert list(compare(swept, result_of([("2", 2.0, drawn(20, 3))]))) == ["2"]
    assert list(compare(one_step(1, label="a"), one_step(2, label="b"))) == ["b"]
    with pytest.raises(ValueError, match="no step in common"):
        compare(swept, result_of([("8", 8.0, drawn(20))]))


def with_rates(run: RunResult, **rates: float | None) -> RunResult:
    return replace(run, hit_rates={name: HitRate(rate=rate, says=str(rate)) for name, rate in rates.items()})


def test_a_warm_cache_is_no_improvement() -> None:
    """As the same seed sent twice to one server: media 3.3 and 100 %, tokens 3.9 and 93.6 % (newcomers.md, row 2)."""
    cold = with_rates(one_step(1, slower=1.5), tokens=0.039, media=0.033)
    warm = with_rates(one_step(2), tokens=0.936, media=1.0)
    said = {row.says for row in compare(cold, warm)["x"]}
    assert "B is faster" not in said and "B's caches were warmer: not to be compared" in said
    text = caches_text(cold, warm)
    assert "A tokens 0.039, media 0.033" in text and "WARNING: of media, B found 97 points more" in text
    turned = compare(warm, cold)["x"]
    assert "B's caches were colder: not to be compared" in {row.says for row in turned}
    assert not any(row.worse_than(0.1) for row in turned)
    slower = compare(with_rates(one_step(1), media=0.0), with_rates(one_step(2, slower=1.5), media=1.0))["x"]
    assert "B is slower" in {row.says for row in slower}, "in spite of its warm cache"


@pytest.mark.parametrize(("first", "second", "warns"), [(0.1, 0.2, True), (0.1, 0.19, False), (None, 1.0, False)])
def test_ten_points_are_warned_of(first: float | None, second: float, warns: bool) -> None:
    a, b = with_rates(one_step(1, slower=1.5), media=first), with_rates(one_step(2), media=second)
    assert ("WARNING" in caches_text(a, b)) == warns
    assert any(row.warmer for row in compare(a, b)["x"]) == warns


def test_the_text_has_its_method() -> None:
    text = compare_text(compare(one_step(1), one_step(2)))
    assert "blocks of neighbouring requests" in text and "95 %" in text and "ttft p50" in text
