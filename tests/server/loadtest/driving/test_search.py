"""The search beside a server with one queue and a fixed time of service (M/D/1), whose true capacity is known."""

import math
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from server.loadtest.driving.search import WARM, Search, hopeless, repeat_length
from server.loadtest.results.capacity import FOUND, MISSED, UNCLEAR, LoadCapacity
from tests.tables import each_of

SERVICE = 0.1  # seconds
MOST = 128  # repeats
Served = Callable[[np.random.Generator], float]  # seconds of service of each request of a repeat


def slower_than(bound: float, rate: float) -> float:
    """The share of requests that wait and are served for longer, by Erlang's formula of the waiting time in M/D/1:
    P(W <= t) = (1 - rho) sum over k <= t/D of (-x)^k/k! e^x with x = rate (t - k D) (Iversen 2015, 10.4.3)."""
    waited = bound - SERVICE
    xs = [rate * (waited - k * SERVICE) for k in range(int(waited / SERVICE + 1e-9) + 1)]
    terms = [Decimal(-x) ** k / math.factorial(k) * Decimal(x).exp() if k else Decimal(x).exp()
             for k, x in enumerate(xs)]  # fmt: skip
    return 1 - (1 - rate * SERVICE) * float(sum(terms))


def true_capacity(bound: float, allowed: float) -> float:
    """The rate at which just the allowed share is beyond the bound."""
    low, high = 0.01, 0.9999 / SERVICE
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if slower_than(bound, middle) < allowed else (low, middle)
    return low


def repeat(rng: np.random.Generator, rate: float, bound: float, allowed: float, served: Served) -> list[float]:
    """Latencies of one repeat, by Lindley's recursion, cut off where it is hopeless."""
    measured, service = repeat_length(allowed), served(rng)
    unmeasured, most = math.ceil(WARM * measured), hopeless(allowed, measured)
    waits, beyond, found = 0.0, 0, []
    for number, gap in enumerate(rng.exponential(1 / rate, measured + unmeasured).tolist()):
        waits = max(0.0, waits - gap)
        if number >= unmeasured:
            found.append(waits + service)
            beyond += waits + service > bound
            if beyond >= most:
                break
        waits += service
    return found


def searched(seed: int, bound: float, allowed: float, served: Served = lambda rng: SERVICE) -> LoadCapacity:
    """One search, as the load test drives it."""
    rng = np.random.default_rng(seed)
    search = Search(bound, allowed, rng.uniform(1.0, 2.5) / SERVICE)
    for _ in range(MOST):
        rate = search.next()
        if rate is None:
            break
        search.add(rate, repeat(rng, rate, bound, allowed, served))
    return search.capacity("ttft")


def held(found: list[LoadCapacity], true: float) -> int:
    """Of how many the interval has the truth within."""
    return sum((one.low or 0.0) <= true <= (one.high or math.inf) for one in found)


def test_the_formula_agrees_with_a_long_simulation() -> None:
    rng, waits, beyond, n = np.random.default_rng(1), 0.0, 0, 400_000
    for gap in rng.exponential(1 / 6, n).tolist():
        waits = max(0.0, waits - gap)
        beyond += waits + SERVICE > 0.45
        waits += SERVICE
    assert beyond / n == pytest.approx(slower_than(0.45, 6.0), rel=0.05)


@each_of(("bound", "allowed"), [(1.0, 0.1)])
def test_the_true_capacity_lies_in_the_interval(bound: float, allowed: float) -> None:
    found = [searched(seed, bound, allowed) for seed in range(20)]
    assert held(found, true_capacity(bound, allowed)) >= 18
    assert sum(one.verdict != FOUND for one in found) <= 2
    assert all(one.high <= 1.25 * one.low for one in found if one.verdict == FOUND and one.low and one.high)


@pytest.mark.long
def test_the_true_capacity_lies_in_the_interval_of_a_p99() -> None:
    found = [searched(seed, 1.0, 0.01) for seed in range(20)]
    assert held(found, true_capacity(1.0, 0.01)) >= 18
    assert sum(one.verdict != FOUND for one in found) <= 2
    assert all(one.high <= 1.25 * one.low for one in found if one.verdict == FOUND and one.low and one.high)


@pytest.mark.long
@each_of(("bound", "allowed"), [(1.0, 0.01), (2.0, 0.01), (1.0, 0.05), (1.0, 0.1), (0.5, 0.05), (0.3, 0.5)])
def test_intervals_hold_in_nine_of_ten_searches(bound: float, allowed: float) -> None:
    found, true = [searched(seed, bound, allowed) for seed in range(200)], true_capacity(bound, allowed)
    unclear, requests = (sum(one.verdict != FOUND for one in found) / len(found),
                         np.mean([sum(row.requests for row in one.loads) for one in found]))  # fmt: skip
    print(
        f"\n{bound} s, {allowed:.0%}: {held(found, true) / len(found):.1%} hold, {unclear:.1%} unclear, {requests:.0f}"
    )
    assert held(found, true) >= 0.9 * len(found) and unclear <= 0.1


def test_a_machine_noisier_than_the_answer_is_unclear() -> None:
    """Each repeat meets another machine: its service takes as long as here, or twice that."""
    found = [searched(seed, 1.0, 0.1, lambda rng: SERVICE * rng.choice([1.0, 2.0])) for seed in range(4)]
    assert sum(one.verdict == UNCLEAR for one in found) >= 2
    assert any("noisier than the answer" in one.says for one in found)


def test_loads_far_from_the_capacity_end_early() -> None:
    found = searched(3, 1.0, 0.01)
    (far,) = [one for one in found.loads if one.load == max(row.load for row in found.loads)]
    assert far.repeats <= 2 and far.requests < repeat_length(0.01) * far.repeats
    assert far.verdict in (MISSED, UNCLEAR)


def test_one_bad_moment_misses_no_objective() -> None:
    """A repeat of which half is beyond, where the others are far below: it is no verdict of its own."""
    search = Search(1.0, 0.01, 10.0)
    search.add(10.0, [0.1] * 250 + [9.0] * 250)
    assert search.loads[10.0].verdict is None
    search.add(10.0, [0.1] * 500)
    assert search.loads[10.0].verdict is None


def test_requests_without_a_latency_are_beyond() -> None:
    search = Search(1.0, 0.01, 10.0)
    for _ in range(2):
        search.add(10.0, [math.inf] * 500)
    (row,) = search.capacity("ttft").loads
    assert (row.verdict, row.percentile, row.beyond) == (MISSED, None, 1000)
