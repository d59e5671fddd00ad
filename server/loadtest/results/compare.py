"""Two runs side by side: each figure's difference with a confidence interval, from long blocks of requests.

Requests that follow one another are alike: they meet the same queue. So each run is cut into few blocks of neighbours,
so long that two of them hardly know of each other. How much their figures differ says how far the run's own may be off
(batch means; of a percentile: sectioning, Asmussen and Glynn 2007, III.5). Student's t knows that they are few.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np
import numpy.typing as npt

from server.loadtest.results.hit_rates import COUNTERS
from server.loadtest.results.intervals import student
from server.loadtest.results.measures import LATENCIES, Record
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.results.table import aligned, milliseconds

METHOD = (
    "difference of B to A with an interval. All intervals together hold with 95 % (each with more, Bonferroni), so "
    "any row is wrong in at most one comparison of equal servers in 20. An interval is Student's t over 5 to "
    "10 blocks of neighbouring requests of each run. Too few: a block needs 20 requests, of p99 100, or nothing is "
    "said. It knows the spread within each run, not the one between runs of the same server: repeat both, taking turns"
)
CACHES = 0.1  # a difference of two hit rates from which on runs are not compared
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
    warmer: bool = False  # B found more in its caches than A, by CACHES or more
    colder: bool = False  # less

    @property
    def by_caches(self) -> bool:
        """The difference is what the caches alone would make."""
        return (self.high < 0 and self.warmer) or (self.low > 0 and self.colder)

    @property
    def relative(self) -> float:
        return (self.b - self.a) / self.a if self.a else 0.0

    @property
    def says(self) -> str:
        if self.high == inf:
            return "too few requests to say"
        if self.by_caches:
            return f"B's caches were {'warmer' if self.warmer else 'colder'}: not to be compared"
        return "B is slower" if self.low > 0 else "B is faster" if self.high < 0 else "no difference shown"

    def worse_than(self, share: float) -> bool:
        """Whether B is certainly slower, by more than that share of A, and not for its caches."""
        return self.low > share * self.a and not self.by_caches


def compare(a: RunResult, b: RunResult) -> dict[str, list[Difference]]:
    """By step: steps of the same label, or the only step of each. Raises ValueError where no steps belong together."""
    ours = {step.label: step for step in a.steps}
    pairs = [(ours[step.label], step) for step in b.steps if step.label in ours]
    if not pairs and len(a.steps) == len(b.steps) == 1:
        pairs = [(a.steps[0], b.steps[0])]
    if not pairs:
        raise ValueError("the runs have no step in common")
    wrong = WRONG / (len(pairs) * len(COMPARED) * len(STATISTICS))  # of each row (Bonferroni)
    gaps = [gap for gap in cache_gaps(a, b).values() if gap is not None]
    warmer, colder = any(gap >= CACHES - 1e-9 for gap in gaps), any(gap <= -CACHES + 1e-9 for gap in gaps)
    return {
        second.label: [replace(one, warmer=warmer, colder=colder) for one in differences(first, second, wrong)]
        for first, second in pairs
    }


def cache_gaps(a: RunResult, b: RunResult) -> dict[str, float | None]:
    """By how much more B found in each cache, as a difference of hit rates; None where one of them is unknown."""
    rates = {name: [run.hit_rates[name].rate if name in run.hit_rates else None for run in (a, b)] for name in COUNTERS}
    return {name: None if None in pair else pair[1] - pair[0] for name, pair in rates.items()}  # type: ignore[operator]


def caches_text(a: RunResult, b: RunResult) -> str:
    """Hit rates of both, and a warning where they are too far apart for a comparison."""
    lines = [f"hit rates: {name} {run.found_again or 'unknown'}" for name, run in (("A", a), ("B", b))]
    for name, gap in cache_gaps(a, b).items():
        if gap is not None and abs(gap) >= CACHES - 1e-9:
            lines.append(
                f"WARNING: of {name}, B found {abs(gap) * 100:.0f} points {'more' if gap > 0 else 'less'} in its cache "
                "than A: what differs may be the cache alone. Run both with seeds that neither server has seen"
            )
    return "\n".join(lines)


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
