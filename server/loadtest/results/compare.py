"""Two runs side by side: each figure's difference with a confidence interval, by a bootstrap over blocks of requests.

Requests that follow one another are alike: they meet the same queue. So blocks of neighbours are drawn, not single
requests (the moving block bootstrap, Kuensch 1989), as long as the cube root of their number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from server.loadtest.results.measures import LATENCIES, Record
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.results.table import aligned, milliseconds

METHOD = (
    "difference of B to A with a 95 % confidence interval: the 2.5th and 97.5th percentile of 2,000 draws, each of "
    "which makes both runs anew out of blocks of n^(1/3) neighbouring requests (moving block bootstrap). An interval "
    "that holds 0 shows no difference. It knows the spread within each run, not the one between runs of the same "
    "server: repeat both, taking turns"
)
DRAWS = 2000
INTERVAL = (2.5, 97.5)  # percentiles
MAX_VALUES = 2_000_000  # that are held at once
AT_LEAST = 8  # values of each run, or nothing is said
STATISTICS = ("p50", "p99", "mean")

Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Difference:
    """One figure of two runs, in seconds; the interval is of b - a."""

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
    return {second.label: differences(first, second) for first, second in pairs}


def differences(a: StepResult, b: StepResult) -> list[Difference]:
    """Of every latency that both have, by every statistic."""
    rng = np.random.default_rng(0)
    found = []
    for name in LATENCIES:
        first, second = values_in_order(a.records, name), values_in_order(b.records, name)
        if min(len(first), len(second)) < AT_LEAST or name == "wait":
            continue
        drawn = redrawn(rng, first)
        ends = np.percentile(redrawn(rng, second) - drawn, INTERVAL, axis=-1)
        rows = np.stack([statistics_of(first), statistics_of(second), *ends], axis=-1).tolist()
        found += [Difference(f"{name} {statistic}", *row) for statistic, row in zip(STATISTICS, rows, strict=True)]
    return found


def values_in_order(records: Sequence[Record], name: str) -> Values:
    """One value for each measured, answered request, in the order of their sending; of several its mean."""
    measured = sorted((one for one in records if one.measured and one.answered), key=lambda one: one.sent)
    values = [one.values(name) for one in measured]
    return np.array([sum(some) / len(some) for some in values if some])


def statistics_of(values: Values) -> Values:
    """STATISTICS over the last axis: [3, ...]."""
    return np.concatenate([np.percentile(values, [50, 99], axis=-1), values.mean(axis=-1)[None]])


def redrawn(rng: np.random.Generator, values: Values) -> Values:
    """STATISTICS of DRAWS samples of the size of `values`, made out of blocks of neighbours: [3, DRAWS]."""
    n = len(values)
    length = max(1, round(n ** (1 / 3)))
    blocks = -(-n // length)
    at_once = max(1, MAX_VALUES // n)
    found = []
    for first in range(0, DRAWS, at_once):
        starts = rng.integers(0, n - length + 1, (min(at_once, DRAWS - first), blocks, 1))
        places = (starts + np.arange(length)).reshape(len(starts), blocks * length)[:, :n]
        found.append(statistics_of(values[places]))
    return np.concatenate(found, axis=-1)


def compare_text(found: dict[str, list[Difference]]) -> str:
    """As lines, milliseconds."""
    lines = []
    for label, rows in found.items():
        head = ["ms", "A", "B", "B - A", "95 % from", "to", ""]
        body = [
            [one.name, milliseconds(one.a), milliseconds(one.b), f"{one.relative:+.1%}", milliseconds(one.low),
             milliseconds(one.high), one.says]
            for one in rows
        ]  # fmt: skip
        lines += [label, *aligned([head, *body]), ""]
    return "\n".join([*lines, METHOD])
