"""What a run must reach for exit code 0: `ttft.p99<=500ms`, `errors<=1%`, `goodput>=5`."""

import re
from dataclasses import dataclass

from server.loadtest.results.measures import LATENCIES, QUANTILES, Summary

STATISTICS = ("mean", "min", "max", *(f"p{q:g}" for q in QUANTILES))
SCALARS = (
    "errors", "failed", "wrong", "answered", "request_rate", "prompt_rate", "output_rate", "concurrency", "goodput",
    "good_share",
)  # fmt: skip
FORM = re.compile(r"([a-z][a-z0-9_]*)(?:\.([a-z0-9.]+?))?\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*(ms|s|%)?")
UNITS = {"ms": 0.001, "s": 1.0, "%": 0.01, None: 1.0}


class RequirementError(ValueError):
    """A requirement or an objective that cannot be read."""


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
            if spread is None:
                return None
            return spread.percentiles[self.statistic] if self.statistic[0] == "p" else getattr(spread, self.statistic)
        if self.name == "errors":
            return summary.failed / summary.requests if summary.requests else None
        return float(getattr(summary, self.name))

    def met(self, value: float | None) -> bool:
        """A figure that does not exist meets nothing."""
        if value is None:
            return False
        bound = self.bound
        return {"<": value < bound, "<=": value <= bound, ">": value > bound, ">=": value >= bound}[self.sign]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A requirement after a step."""

    text: str
    step: str
    value: float | None
    met: bool


def read_requirement(text: str) -> Requirement:
    """Raises RequirementError."""
    match = FORM.fullmatch(text.strip())
    if match is None:
        raise RequirementError(f"{text!r}: wanted is something like ttft.p99<=500ms, errors<=1% or goodput>=5")
    name, statistic, sign, number, unit = match.groups()
    if statistic is None and name not in SCALARS:
        raise RequirementError(f"{text!r}: {name!r} is none of {', '.join(SCALARS)}; latencies are {_latencies()}")
    if statistic is not None and (name not in LATENCIES or statistic not in STATISTICS):
        raise RequirementError(f"{text!r}: latencies are {_latencies()}")
    try:
        return Requirement(text.strip(), name, statistic, sign, float(number) * UNITS[unit])
    except ValueError:
        raise RequirementError(f"{text!r}: {number!r} is no number") from None


def _latencies() -> str:
    return f"{', '.join(LATENCIES)}, each with .{', .'.join(STATISTICS)}"


def outcomes(requirements: tuple[Requirement, ...], step: str, summary: Summary) -> list[Outcome]:
    """How one step did."""
    values = [(requirement, requirement.value(summary)) for requirement in requirements]
    return [Outcome(requirement.text, step, value, requirement.met(value)) for requirement, value in values]
