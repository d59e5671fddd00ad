"""What is known of one request when it is over, what many say together and by which formulas, and what that must be."""

import math
import operator
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from server.loadtest.results.intervals import LEVEL, Evidence, evidence


@dataclass(slots=True, kw_only=True)
class Record:
    """Times are seconds since the start of the run, by one monotonic clock; None where the thing never happened."""

    index: int
    step: int = 0  # of a sweep
    kind: str = "text"  # of its media, such as `image` or `image+audio`
    bucket: str = ""  # sizes
    measured: bool = True  # False: sent while the load was still rising
    due: float = 0.0  # when the arrival process, or the end of the stream's last request, wanted it sent
    sent: float = 0.0  # body ready, before a connection was taken
    first: float | None = None  # first event that carries content
    last: float | None = None  # last event that carries content or says how the answer ended
    ended: float = 0.0
    events: int = 0  # that carry content
    gaps: list[float] = field(default_factory=list)  # seconds between such events
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    tokens_by_events: bool = False  # the server sent no usage: output_tokens counts events
    status: int = 0  # of HTTP; 0: there was no answer
    finish: str | None = None
    error: str | None = None
    cancelled: bool = False  # by us, on purpose
    correct: bool | None = None  # None: nobody knows the answer
    answer: str | None = None  # kept where it was checked
    sent_bytes: int = 0
    request_id: str | None = None  # the server's, for its log
    stages: dict[str, float] = field(default_factory=dict)  # seconds, as the server tells them

    @property
    def answered(self) -> bool:
        """It counts for latencies: whole, and without an error."""
        return self.error is None and not self.cancelled

    @property
    def wait(self) -> float:
        return self.sent - self.due

    @property
    def ttft(self) -> float | None:
        return None if self.first is None else self.first - self.sent

    @property
    def e2el(self) -> float | None:
        return None if self.last is None else self.last - self.sent

    @property
    def tpot(self) -> float | None:
        """None where there is no second token."""
        if self.first is None or self.last is None or (self.output_tokens or 0) < 2:
            return None
        return (self.last - self.first) / ((self.output_tokens or 0) - 1)

    def values(self, latency: str) -> Sequence[float]:
        """Of one of LATENCIES, in seconds: none where it never happened, several of `itl`."""
        if latency == "itl":
            return self.gaps
        value: float | None = self.stages.get("queue") if latency == "queue" else getattr(self, latency)
        return () if value is None else (value,)


QUANTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 99.9)
STATISTICS = ("mean", "min", "max", *(f"p{q:g}" for q in QUANTILES))
# The latencies of a request, in seconds, by their names; `Record.values` has their values.
LATENCIES = {
    "ttft": "first event that carries content - sent; chunks with a role alone and comments do not count",
    "tpot": "(last event - first content) / (output tokens - 1), of answers of two tokens and more",
    "itl": "between two events that carry content; an event may hold several tokens, so this is not tpot",
    "e2el": "last event that carries content or a finish reason - sent; usage and [DONE] do not count",
    "wait": "sent - due: how late this client was, or how long a bound on its requests in flight held it back",
    "queue": "the server's own word: from a prepared prompt to its first step in the engine",
}
SEARCHED = ("ttft", "tpot", "e2el", "queue")  # of these a load's percentile can be searched for
# Figures of a step that are one number each.
SCALARS = (
    "errors", "failed", "wrong", "answered", "request_rate", "prompt_rate", "output_rate", "concurrency", "goodput",
    "good_share",
)  # fmt: skip
# A figure's bound, as it is asked for: `ttft.p99<=500ms`, `errors<=1%`, `goodput>=5`.
FORM = re.compile(r"([a-z][a-z0-9_.]*?)\s*(<=|>=|<|>)\s*([0-9.eE+-]+)\s*(ms|s|%)?")
UNITS = {"ms": 0.001, "s": 1.0, "%": 0.01, None: 1.0}
SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
FORMULAS = {
    **LATENCIES,
    "seconds": "of an open loop from the end of the ramp until a request after the last one would be due; of a closed "
    "loop from the first measured sending to the last answered end. Rates are of the answers that ended within",
    "request_rate": "such answers / seconds",
    "output_rate": "their output tokens / seconds",
    "concurrency": "sum of their e2el / seconds",
    "goodput": "those of them that keep every objective (--slo) / seconds; ttft and e2el count from when the request "
    "was due, and an answer without a figure that an objective bounds does not keep it",
    "good_share": "what keeps them, as a share of all measured requests that were not cancelled on purpose",
    "percentiles": "pQ: of n sorted values x[0..n-1] the one at place Q/100*(n-1), with a straight line between two "
    "neighbours (numpy's default, Hyndman and Fan's type 7)",
}


Spread = dict[str, float]  # of some values in seconds: how many they are as `n`, and each of STATISTICS


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
    seconds: float = 0.0  # that rates are of
    prompt_tokens: int = 0
    output_tokens: int = 0
    request_rate: float = 0.0
    prompt_rate: float = 0.0
    output_rate: float = 0.0
    concurrency: float = 0.0
    goodput: float = 0.0
    good_share: float = 0.0
    good_low: float = 0.0  # the interval of the true share, 95 %
    good_high: float = 1.0
    objective_p99: dict[str, float | None] = field(default_factory=dict)  # by objective, as it counts; None: no answer
    latencies: dict[str, Spread] = field(default_factory=dict)
    stages: dict[str, Spread] = field(default_factory=dict)

    def figure(self, name: str) -> float | None:
        """One of SCALARS, or a latency's statistic such as `ttft.p99`; None where the step has no such figure."""
        latency, _, statistic = name.partition(".")
        if statistic:
            return self.latencies[latency][statistic] if latency in self.latencies else None
        if name == "errors":
            return self.failed / self.requests if self.requests else None
        return float(getattr(self, name))


def spread(values: Sequence[float]) -> Spread:
    """Of one value or more."""
    array = np.asarray(values, np.float64)
    found = [len(array), array.mean(), array.min(), array.max(), *np.percentile(array, QUANTILES)]
    return dict(zip(("n", *STATISTICS), map(float, found), strict=True))


def p99(values: Sequence[float]) -> float | None:
    """Of latencies of which some are inf; None where it is one of these."""
    found = float(np.quantile(values, 0.99, method="higher")) if values else math.inf
    return found if math.isfinite(found) else None


def fewest(share: float) -> int:
    """Requests from which on a figure of this share of them, such as 0.99, says more than the slowest one does."""
    rest = min(share, 1 - share)
    return math.ceil(1 / rest - 1e-6) if rest > 0 else 1


def from_due(record: Record, latency: str) -> float:
    """Seconds of a latency (of several the worst), ttft and e2el from when the request was due; inf without one."""
    if not record.answered:
        return math.inf
    return max(record.values(latency), default=math.inf) + (record.wait if latency in ("ttft", "e2el") else 0.0)


def keeps(record: Record, objectives: Mapping[str, float]) -> bool:
    """Answered, and what each objective (latency: seconds) bounds is known and at most that, from when it was due."""
    return all(from_due(record, name) <= limit for name, limit in objectives.items()) and record.answered


def summarise(
    records: Sequence[Record], objectives: Mapping[str, float], window: tuple[float, float] | None = None
) -> Summary:
    """The measured ones. window: of an open loop, in which its requests were due; seconds of the run.

    Rates are of what ended within the window, whenever it was sent: one that hangs would make it as long as it likes.
    """
    measured = [one for one in records if one.measured]
    answered = [one for one in measured if one.answered]
    failed = [one for one in measured if one.error is not None]
    cancelled = sum(one.cancelled for one in measured)
    if window is None:
        ends = [one.ended for one in answered]
        begin, end, counted = min((one.sent for one in measured), default=0.0), max(ends, default=0.0), answered
    else:
        begin, end = window
        counted = [one for one in records if one.answered and begin <= one.ended <= end]
    per_second = 1 / (end - begin) if end > begin else 0.0
    judged = sorted((one for one in measured if not one.cancelled), key=lambda one: one.due)
    kept = np.array([keeps(one, objectives) for one in judged], np.bool_)
    low, high = evidence([kept]).interval() if len(kept) else (0.0, 1.0)
    latencies = {  # of `wait` also those that failed: they were sent, too
        name: [value for one in (measured if name == "wait" else answered) for value in one.values(name)]
        for name in LATENCIES
    }
    told = dict.fromkeys(name for one in answered for name in one.stages)
    stages = sorted(told, key=lambda name: "." in name)  # parts of stages stand behind the stages
    return Summary(
        requests=len(measured), answered=len(answered), cancelled=cancelled, failed=len(failed),
        errors=dict(Counter(one.error or "" for one in failed).most_common()),
        checked=sum(one.correct is not None for one in answered), wrong=sum(one.correct is False for one in answered),
        seconds=max(0.0, end - begin), prompt_tokens=sum(one.prompt_tokens or 0 for one in answered),
        output_tokens=sum(one.output_tokens or 0 for one in answered), request_rate=len(counted) * per_second,
        prompt_rate=sum(one.prompt_tokens or 0 for one in counted) * per_second,
        output_rate=sum(one.output_tokens or 0 for one in counted) * per_second,
        concurrency=sum(one.e2el or 0.0 for one in counted) * per_second,
        goodput=sum(keeps(one, objectives) for one in counted) * per_second,
        good_share=float(kept.mean()) if len(kept) else 0.0, good_low=low, good_high=high,
        objective_p99={name: p99([from_due(one, name) for one in judged]) for name in objectives},
        latencies={name: spread(values) for name, values in latencies.items() if values},
        stages={name: spread([one.stages[name] for one in answered if name in one.stages]) for name in stages},
    )  # fmt: skip


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
    requests: int = 0  # that it was judged by
    needed: int | None = None  # requests that could tell; None: these could


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


def read_objective(text: str) -> Requirement:
    """A requirement that a search can ask for: a percentile of a latency that each request has once. ValueError."""
    found = read_requirement(text)
    latency, _, statistic = found.figure.partition(".")
    if found.sign != "<=" or latency not in SEARCHED or not 50 <= float(statistic.lstrip("pmeanix") or 0) < 100:
        raise ValueError(f"{text!r}: wanted is a percentile from p50 on of {', '.join(SEARCHED)}, as in ttft.p99<=1s")
    return found


def outcomes(
    requirements: Sequence[Requirement], step: str, summary: Summary, records: Sequence[Record] = ()
) -> list[RequirementResult]:
    """How one step did."""
    return [outcome(one, step, summary, records) for one in requirements]


def outcome(one: Requirement, step: str, summary: Summary, records: Sequence[Record]) -> RequirementResult:
    """A percentile, or a share that is good, of fewer requests than it needs meets nothing; many values beyond its
    bound may still show that it is missed."""
    value = summary.figure(one.figure)
    met = value is not None and SIGNS[one.sign](value, one.bound)
    latency, _, statistic = one.figure.partition(".")
    measured = [record for record in records if record.measured and not record.cancelled]
    if statistic in STATISTICS[3:]:
        having = [record.values(latency) for record in measured if record.answered and record.values(latency)]
        share, n = float(statistic[1:]) / 100, len(having)
        wrong = sum(not all(SIGNS[one.sign](each, one.bound) for each in some) for some in having)
    elif one.figure == "good_share":
        share, n = one.bound, len(measured)
        wrong = n - round(summary.good_share * n)
    else:
        return RequirementResult(one.text, step, value, met)
    few = 0 < n < fewest(share)
    allowed = share if one.sign[0] == ">" and statistic else 1 - share
    surely = Evidence(wrong, n).at_least(allowed) < (1 - LEVEL) / 2
    unclear = few and (met or not surely)
    return RequirementResult(one.text, step, value, met and not unclear, n, fewest(share) if unclear else None)
