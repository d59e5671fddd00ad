"""Intervals and tests of a share of requests that follow one another, and the distributions that they need.

Requests that share a queue are alike: a hundred of them may be worth ten independent ones. How much they are worth is
read off blocks of neighbours (the design effect: the variance of the blocks' share over that of independent requests).
With it the number of requests is divided, and the exact binomial interval is taken of what is left: Korn and Graubard
1998, "Confidence intervals for proportions with small expected number of positive counts".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

BLOCKS = 16  # of neighbours, at least, that a share's variance is read off
LEVEL = 0.95  # of an interval that is reported

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Evidence:
    """A share as so many independent requests would show it: `hits` of `n`, of which neither need be whole."""

    hits: float
    n: float

    def at_most(self, share: float) -> float:
        """How likely so few hits, or fewer, are at this true share."""
        return 1.0 if self.hits >= self.n else 1.0 - beta_cdf(share, self.hits + 1, self.n - self.hits)

    def at_least(self, share: float) -> float:
        """How likely so many hits, or more, are at this true share."""
        return 1.0 if self.hits <= 0 else beta_cdf(share, self.hits, self.n - self.hits + 1)

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """Clopper and Pearson's, as shares from 0 to 1; all of it where there is nothing."""
        if self.n <= 0:
            return 0.0, 1.0
        wrong = (1 - level) / 2
        low = 0.0 if self.hits <= 0 else beta_quantile(wrong, self.hits, self.n - self.hits + 1)
        high = 1.0 if self.hits >= self.n else beta_quantile(1 - wrong, self.hits + 1, self.n - self.hits)
        return low, high


def evidence(runs: Sequence[Flags], alike: Sequence[Flags] = (), wrong: float = (1 - LEVEL) / 2) -> Evidence:
    """What the flags of independent runs, each in the order of its requests, are worth.

    alike: other flags of the same requests, whose blocks are looked at as well: where hardly one of `runs` is set, its
    blocks say nothing of how alike neighbours are. wrong: of the test that follows; Student's t makes up for few
    blocks.
    """
    n, hits = sum(map(len, runs)), sum(int(one.sum()) for one in runs)
    if n == 0:
        return Evidence(0.0, 0.0)
    blocks = max(1, math.ceil(BLOCKS / len(runs)))
    effect = design_effect(alike or runs, blocks)
    known = sum(min(blocks, len(one)) for one in runs)
    few = (NormalDist().inv_cdf(1 - wrong) / student(1 - wrong, known - 1.0)) ** 2 if known > 4 and effect > 1 else 1.0
    worth = max(1.0, n / effect * few) if n > 1 else float(n)
    return Evidence(hits / n * worth, worth)


def design_effect(runs: Sequence[Flags], blocks: int) -> float:
    """How many requests are worth one independent one, by so many blocks of neighbours of each run; 1 at least."""
    n, hits = sum(map(len, runs)), sum(int(one.sum()) for one in runs)
    cut = [block for one in runs for block in np.array_split(one, min(blocks, len(one)) or 1)]
    if not 0 < hits < n or len(cut) < 2:
        return 1.0
    share = hits / n
    spread = sum((int(block.sum()) - share * len(block)) ** 2 for block in cut) * len(cut) / (len(cut) - 1)
    return max(1.0, spread / (n * share * (1 - share)))


def beta_cdf(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b), a and b above 0, by its continued fraction (Lentz's way;
    NIST's handbook, 8.17.22)."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(1 - x, b, a)
    logs = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    value, up, down = 1.0, 1.0, 0.0
    for step in range(1000):
        m = step // 2
        if step == 0:
            term = 1.0
        elif step % 2:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        down = 1 / (1 + term * down or 1e-300)
        up = 1 + term / up or 1e-300
        value *= up * down
        if step and abs(1 - up * down) < 1e-13:
            break
    return min(1.0, max(0.0, math.exp(logs) / a * (value - 1)))


def beta_quantile(p: float, a: float, b: float) -> float:
    """The x of which beta_cdf is p, to 15 digits behind the point."""
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if beta_cdf(middle, a, b) < p else (low, middle)
    return (low + high) / 2


def student(p: float, degrees: float) -> float:
    """The quantile of Student's t, from the normal one: Cornish and Fisher's series (Abramowitz and Stegun, 26.7.5).

    Within 2 % from 4 degrees of freedom on, up to p = 0.999.
    """
    z = NormalDist().inv_cdf(p)
    terms = (
        1.0,
        (z**2 + 1) / 4,
        (5 * z**4 + 16 * z**2 + 3) / 96,
        (3 * z**6 + 19 * z**4 + 17 * z**2 - 15) / 384,
        (79 * z**8 + 776 * z**6 + 1482 * z**4 - 1920 * z**2 - 945) / 92160,
    )
    return z * sum(term / degrees**power for power, term in enumerate(terms))
