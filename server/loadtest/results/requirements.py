"""What a run must reach for exit code 0: `ttft.p99<=500ms`, `errors<=1%`, `goodput>=5`."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.loadtest.results.measures import LATENCIES, QUANTILES, Summary

STATISTICS = ("mean", "min", "max", *(f"p{q:g}" for q in QUANTILES))
SCALARS = (
    "errors", "failed", "wrong", "answered", "request_rate", "prompt_rate", "output_rate", "concurrency", "goodput",
    "good_share",
)  # fmt: skip
FORM = re.compile(r"([a-z][a-z0-9_]*)(?:\.([a-z0-9.]+?))?\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*(ms|s|%)?")
UNITS = {"ms": 0.001, "s": 1.0, "%": 0.01, None: 1.0}
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A figure of a summary and its bound, in seconds, by the second, or as a share from 0 to 1."""

    text: str
    name: str
    statistic: str | None
    sign: str
    bound: float

    def value(self, summary: Summary) -> float | None:
        """None where the run has no such figure."""
        if self.statistic is not None:
            spread = summary.latencies.get(self.name)
            return None if spread is None else spread.statistic(self.statistic)
        if self.name == "errors":
            return summary.failed / summary.requests if summary.requests else None
        return float(getattr(summary, self.name))


@dataclass(frozen=True, slots=True)
class RequirementResult:
    """A requirement after a step. A figure that does not exist meets nothing."""

    text: str
    step: str
    value: float | None
    met: bool


def read_requirement(text: str) -> Requirement:
    """Raises ValueError."""
    latencies = f"{', '.join(LATENCIES)}, each with .{', .'.join(STATISTICS)}"
    match = FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r}: wanted is something like ttft.p99<=500ms, errors<=1% or goodput>=5")
    name, statistic, sign, number, unit = match.groups()
    if statistic is None and name not in SCALARS:
        raise ValueError(f"{text!r}: {name!r} is none of {', '.join(SCALARS)}; latencies are {latencies}")
    if statistic is not None and (name not in LATENCIES or statistic not in STATISTICS):
        raise ValueError(f"{text!r}: latencies are {latencies}")
    try:
        return Requirement(text.strip(), name, statistic, sign, float(number) * UNITS[unit])
    except ValueError:
        raise ValueError(f"{text!r}: {number!r} is no number") from None


def outcomes(requirements: Sequence[Requirement], step: str, summary: Summary) -> list[RequirementResult]:
    """How one step did."""
    found = []
    for one in requirements:
        value = one.value(summary)
        met = value is not None and SIGNS[one.sign](value, one.bound)
        found.append(RequirementResult(one.text, step, value, met))
    return found
