"""Two runs side by side: each figure's difference with a confidence interval, from long blocks of requests.

Requests that follow one another are alike: they meet the same queue. So each run is cut into few blocks of neighbours,
so long that two of them hardly know of each other. How much their figures differ says how far the run's own may be off
(batch means; of a percentile: sectioning, Asmussen and Glynn 2007, III.5). Student's t knows that they are few.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, sqrt
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from server.loadtest.results.measures import LATENCIES, Record
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.results.table import aligned, milliseconds

METHOD = (
    "difference of B to A with an interval. All intervals together hold with 95 % (each with more, Bonferroni), so "
    "any row is wrong in at most one comparison of equal servers in 20. An interval is Student's t over 5 to "
    "10 blocks of neighbouring requests of each run. Too few: a block needs 20 requests, of p99 100, or nothing is "
    "said. It knows the spread within each run, not the one between runs of the same server: repeat both, taking turns"
)
WRONG = 0.05  # how often a comparison of equal servers may claim a difference in any row
BLOCKS, FEWEST_BLOCKS = 10, 5  # of a run
STATISTICS = {"p50": 20, "p99": 100, "mean": 20}  # and how many requests a block of it needs

COMPARED = tuple(name for name in LATENCIES if name != "wait")

Values = npt.NDArray[np.float64]
Estimate = tuple[float, float, float]  # a figure, the variance of its error (inf: nobody knows), degrees of freedom


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs, in seconds; the interval is of b - a, and without an end where nothing can be said."""

    name: str
    a: float
    b: float
    low: float
    high: float

    @property
    def relative(self) -> float:
        return (self.b - self.a) / self.a if self.a else 0.0

    @property
    def says(self) -> str:
        if self.high == inf:
            return "too few requests to say"
        return "B is slower" if self.low > 0 else "B is faster" if self.high < 0 else "no difference shown"

    def worse_than(self, share: float) -> bool:
        """Whether B is certainly slower, and by more than that share of A."""
        return self.low > share * self.a


def compare(a: RunResult, b: RunResult) -> dict[str, list[Difference]]:
    """By step: steps of the same label, or the only step of each. Raises ValueError where no steps belong together."""
    ours = {step.label: step for step in a.steps}
    pairs = [(ours[step.label], step) for step in b.steps if step.label in ours]
    if not pairs and len(a.steps) == len(b.steps) == 1:
        pairs = [(a.steps[0], b.steps[0])]
    if not pairs:
        raise ValueError("the runs have no step in common")
    wrong = WRONG / (len(pairs) * len(COMPARED) * len(STATISTICS))  # of each row (Bonferroni)
    return {second.label: differences(first, second, wrong) for first, second in pairs}


def differences(a: StepResult, b: StepResult, wrong: float) -> list[Difference]:
    """Of every latency that both have, by every statistic. wrong: how often an interval may miss the truth."""
    found = []
    for name in COMPARED:
        first, second = values_in_order(a.records, name), values_in_order(b.records, name)
        if len(first) and len(second):
            found += [difference(f"{name} {one}", estimate(first, one), estimate(second, one), wrong)
                      for one in STATISTICS]  # fmt: skip
    return found


def values_in_order(records: Sequence[Record], name: str) -> Values:
    """One value for each measured, answered request of some in the order of their sending; of several its mean."""
    values = [one.values(name) for one in records if one.measured and one.answered]
    return np.array([sum(some) / len(some) for some in values if some])


def estimate(values: Values, statistic: str) -> Estimate:
    """Of one run; values: [n], in the order of their sending."""

    def of(some: Values) -> Values:  # over the last axis
        return np.asarray(some.mean(-1) if statistic == "mean" else np.percentile(some, int(statistic[1:]), axis=-1))

    whole, blocks = float(of(values)), min(BLOCKS, len(values) // STATISTICS[statistic])
    if blocks < FEWEST_BLOCKS:
        return whole, inf, 1.0
    length = len(values) // blocks
    each = of(values[-blocks * length :].reshape(blocks, length))
    return whole, float(np.square(each - whole).sum()) / (blocks - 1) / blocks, blocks - 1.0


def difference(name: str, a: Estimate, b: Estimate, wrong: float) -> Difference:
    """The interval is Welch's, its degrees of freedom Satterthwaite's."""
    variance, parts = a[1] + b[1], a[1] ** 2 / a[2] + b[1] ** 2 / b[2]
    known = student(1 - wrong / 2, variance**2 / parts) if 0 < parts < inf else 1.0
    reach = known * sqrt(variance)
    return Difference(name, a[0], b[0], b[0] - a[0] - reach, b[0] - a[0] + reach)


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


def compare_text(found: dict[str, list[Difference]]) -> str:
    """As lines, milliseconds."""
    lines = []
    for label, rows in found.items():
        head = ["ms", "A", "B", "B - A", "from", "to", ""]
        body = [
            [one.name, milliseconds(one.a), milliseconds(one.b), f"{one.relative:+.1%}", milliseconds(one.low),
             milliseconds(one.high), one.says]
            for one in rows
        ]  # fmt: skip
        lines += [label, *aligned([head, *body]), ""]
    return "\n".join([*lines, METHOD])
