"""Intervals of a share: the distributions by published values, and how often an interval holds the truth."""

import math

import numpy as np
import pytest

from server.loadtest.results.intervals import Evidence, beta_cdf, beta_quantile, design_effect, evidence, student
from tests.tables import each_of


@each_of(("degrees", "p", "true"), [(4, 0.975, 2.7764), (8, 0.995, 3.3554), (18, 0.999, 3.6105)])
def test_students_quantiles_are_those_of_the_tables(degrees: float, p: float, true: float) -> None:
    assert student(p, degrees) == pytest.approx(true, rel=0.002)


@each_of(("hits", "n"), [(0, 10), (3, 10), (7, 500), (499, 500)])
@each_of("share", [0.01, 0.3, 0.9])
def test_whole_counts_are_the_binomials(hits: int, n: int, share: float) -> None:
    """By the binomial's own sum."""
    terms = [math.comb(n, k) * share**k * (1 - share) ** (n - k) for k in range(n + 1)]
    assert Evidence(hits, n).at_most(share) == pytest.approx(sum(terms[: hits + 1]), abs=1e-9)
    assert Evidence(hits, n).at_least(share) == pytest.approx(sum(terms[hits:]), abs=1e-9)


def test_the_interval_is_clopper_and_pearsons() -> None:
    """7 of 50: R's binom.test(7, 50) says 0.0581917 to 0.2673960; 0 of 100: the upper end is 1 - 0.025^(1/100)."""
    assert Evidence(7, 50).interval() == pytest.approx((0.0581917, 0.2673960), abs=1e-5)
    assert Evidence(0, 100).interval() == pytest.approx((0.0, 1 - 0.025**0.01))
    assert Evidence(100, 100).interval() == pytest.approx((0.025**0.01, 1.0))
    assert Evidence(0, 0).interval() == (0.0, 1.0)


def test_the_incomplete_beta_function_is_a_polynomial_for_whole_numbers() -> None:
    assert beta_cdf(0.3, 2, 1) == pytest.approx(0.09) and beta_cdf(0.3, 1, 3) == pytest.approx(1 - 0.7**3)
    assert beta_cdf(0.0, 2, 2) == 0 and beta_cdf(1.0, 2, 2) == 1
    assert beta_quantile(0.09, 2, 1) == pytest.approx(0.3)


def test_neighbours_that_are_alike_are_worth_fewer() -> None:
    alike = np.repeat(np.random.default_rng(2).random(200) < 0.2, 10)
    shuffled = np.random.default_rng(3).permutation(alike)
    assert design_effect([alike], 40) == pytest.approx(10, rel=0.4)
    assert design_effect([shuffled], 40) < 2
    assert evidence([alike]).n < evidence([shuffled]).n / 3


@each_of("length", [1, 8])
def test_an_interval_holds_as_often_as_it_says(length: int) -> None:
    """95 %, whether each request is drawn by itself or eight neighbours together."""
    rng, held = np.random.default_rng(4), 0
    for _ in range(200):
        low, high = evidence([np.repeat(rng.random(800 // length) < 0.05, length)]).interval()
        held += low <= 0.05 <= high
    assert held >= 184, "the binomial's 0.5 % below 95 % of 200"
