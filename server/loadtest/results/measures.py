"""What many records say together: latencies, rates, the share that kept its objectives; and the formula of each."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from server.loadtest.results.record import Record

QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
PERCENTILE_FORMULA = (
    "pQ: of n sorted values x[0..n-1] the one at place Q/100*(n-1), with a straight line between two neighbours "
    "(numpy's default, Hyndman and Fan's type 7)"
)


@dataclass(frozen=True, slots=True)
class Measure:
    """One latency of a request, in seconds: how it is called, computed, and taken from a record."""

    name: str
    formula: str
    values: Callable[[Record], Sequence[float]]


def _one(value: float | None) -> tuple[float, ...]:
    return () if value is None else (value,)


def _stage(name: str) -> Callable[[Record], Sequence[float]]:
    return lambda record: _one(record.stages.get(name))


MEASURES = (
    Measure("ttft", "first event that carries content - sent; chunks with a role alone and comments do not count",
            lambda record: _one(record.ttft)),
    Measure("tpot", "(last event - first content) / (output tokens - 1), of answers of two tokens and more",
            lambda record: _one(record.tpot)),
    Measure("itl", "between two events that carry content; an event may hold several tokens, so this is not tpot",
            lambda record: record.gaps),
    Measure("e2el", "last event that carries content or a finish reason - sent; usage and [DONE] do not count",
            lambda record: _one(record.e2el)),
    Measure("wait", "sent - due: how late this client was, or how long a bound on its requests in flight held it back",
            lambda record: (record.wait,)),
    Measure("queue", "the server's own word: from a prepared prompt to a place in the engine", _stage("queue")),
)  # fmt: skip
LATENCIES = {measure.name: measure for measure in MEASURES}


@dataclass(frozen=True, slots=True)
class Spread:
    """Some values: how many, their mean, standard deviation (n - 1), ends and percentiles, all in seconds."""

    n: int
    mean: float
    std: float
    min: float
    max: float
    percentiles: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a step of a run was like. Rates are by the second; shares from 0 to 1."""

    requests: int  # that were measured
    answered: int
    cancelled: int
    failed: int
    errors: dict[str, int] = field(default_factory=dict)
    checked: int = 0
    wrong: int = 0
    seconds: float = 0.0  # from the first measured request's sending to the last one's end
    prompt_tokens: int = 0
    output_tokens: int = 0
    tokens_by_events: bool = False
    request_rate: float = 0.0
    prompt_rate: float = 0.0
    output_rate: float = 0.0
    concurrency: float = 0.0
    good: int = 0
    goodput: float = 0.0
    good_share: float = 0.0
    latencies: dict[str, Spread] = field(default_factory=dict)
    stages: dict[str, Spread] = field(default_factory=dict)


RATE_FORMULAS = {
    "seconds": "from the sending of the first measured request to the end of the last",
    "request_rate": "answered / seconds",
    "output_rate": "output tokens of answered requests / seconds",
    "concurrency": "sum of e2el / seconds",
    "goodput": "answered requests that keep every objective (--slo) / seconds",
    "good_share": "the same, as a share of all measured requests that were not cancelled on purpose",
}


def percentile(ordered: Sequence[float], quantile: float) -> float:
    """By PERCENTILE_FORMULA. Raises ValueError where there are no values."""
    if not ordered:
        raise ValueError("no values")
    place = quantile / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread | None:
    """None where there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    n = len(ordered)
    mean = math.fsum(ordered) / n
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in ordered) / (n - 1)) if n > 1 else 0.0
    return Spread(n, mean, std, ordered[0], ordered[-1], {f"p{q:g}": percentile(ordered, q) for q in QUANTILES})


def values_of(measure: str, records: Sequence[Record]) -> list[float]:
    """Of all measured, answered requests; of `wait` of every measured request: those that failed were sent, too."""
    chosen = (one for one in records if one.measured and (one.answered or measure == "wait"))
    return [value for one in chosen for value in LATENCIES[measure].values(one)]


def keeps(record: Record, objectives: Mapping[str, float]) -> bool:
    """Answered, and every value that an objective (measure: seconds) bounds is at most that."""
    bounded = ((value, limit) for name, limit in objectives.items() for value in LATENCIES[name].values(record))
    return record.answered and all(value <= limit for value, limit in bounded)


def summarise(records: Sequence[Record], objectives: Mapping[str, float]) -> Summary:
    """The measured ones alone."""
    measured = [one for one in records if one.measured]
    answered = [one for one in measured if one.answered]
    failed = [one for one in measured if one.error is not None]
    cancelled = sum(one.cancelled for one in measured)
    if not measured:
        return Summary(requests=0, answered=0, cancelled=0, failed=0)
    seconds = max(one.ended for one in measured) - min(one.sent for one in measured)
    per_second = 1 / seconds if seconds > 0 else 0.0
    output = sum(one.output_tokens or 0 for one in answered)
    prompt = sum(one.prompt_tokens or 0 for one in answered)
    good = sum(keeps(one, objectives) for one in answered)
    spreads = {name: spread(values_of(name, measured)) for name in LATENCIES}
    return Summary(
        requests=len(measured), answered=len(answered), cancelled=cancelled, failed=len(failed),
        errors=dict(Counter(one.error or "" for one in failed).most_common()),
        checked=sum(one.correct is not None for one in answered), wrong=sum(one.correct is False for one in answered),
        seconds=seconds, prompt_tokens=prompt, output_tokens=output,
        tokens_by_events=any(one.tokens_by_events for one in answered),
        request_rate=len(answered) * per_second, prompt_rate=prompt * per_second, output_rate=output * per_second,
        concurrency=math.fsum(one.e2el or 0.0 for one in answered) * per_second,
        good=good, goodput=good * per_second, good_share=good / max(1, len(measured) - cancelled),
        latencies={name: found for name, found in spreads.items() if found is not None},
        stages=stage_spreads(answered),
    )  # fmt: skip


def stage_spreads(records: Sequence[Record]) -> dict[str, Spread]:
    """Of each stage that the server told, over the requests that had it."""
    names = dict.fromkeys(name for one in records for name in one.stages)
    names = dict.fromkeys(sorted(names, key=lambda name: "." in name))  # parts of stages stand behind the stages
    found = {name: spread([one.stages[name] for one in records if name in one.stages]) for name in names}
    return {name: value for name, value in found.items() if value is not None}
