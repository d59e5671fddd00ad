"""What a run must reach for exit code 0: `ttft.p99<=500ms`, `errors<=1%`, `goodput>=5`."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from server.loadtest.results.measures import LATENCIES, SCALARS, STATISTICS, Summary

FORM = re.compile(r"([a-z][a-z0-9_.]*?)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*(ms|s|%)?")
UNITS = {"ms": 0.001, "s": 1.0, "%": 0.01, None: 1.0}
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


@dataclass(frozen=True, slots=True)
class Requirement:
    """A figure of a step and its bound, in seconds, by the second, or as a share from 0 to 1."""

    text: str
    figure: str
    sign: str
    bound: float


@dataclass(frozen=True, slots=True)
class RequirementResult:
    """A requirement after a step. A figure that does not exist meets nothing."""

    text: str
    step: str
    value: float | None
    met: bool


def read_requirement(text: str) -> Requirement:
    """Raises ValueError."""
    match = FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r}: wanted is something like ttft.p99<=500ms, errors<=1% or goodput>=5")
    figure, sign, number, unit = match.groups()
    if figure not in {*SCALARS, *(f"{latency}.{statistic}" for latency in LATENCIES for statistic in STATISTICS)}:
        latencies = f"{', '.join(LATENCIES)}, each with .{', .'.join(STATISTICS)}"
        raise ValueError(f"{text!r}: {figure!r} is none of {', '.join(SCALARS)}; latencies are {latencies}")
    try:
        return Requirement(text.strip(), figure, sign, float(number) * UNITS[unit])
    except ValueError:
        raise ValueError(f"{text!r}: {number!r} is no number") from None


def outcomes(requirements: Sequence[Requirement], step: str, summary: Summary) -> list[RequirementResult]:
    """How one step did."""
    values = [(one, summary.figure(one.figure)) for one in requirements]
    return [
        RequirementResult(one.text, step, value, value is not None and SIGNS[one.sign](value, one.bound))
        for one, value in values
    ]
