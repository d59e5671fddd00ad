"""The highest load that keeps an objective, as a search found it: an interval, its verdict, and what each load gave."""

from collections.abc import Sequence
from dataclasses import dataclass, field

KEPT, MISSED, UNCLEAR = "kept", "missed", "unclear"  # of a load
FOUND, NONE = "found", "none"  # of a search, besides UNCLEAR
WIDEST = 1.25  # the upper end of an interval that is found over its lower one, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadVerdict:
    """One load of a search. Shares are from 0 to 1, of measured requests that were beyond the objective."""

    load: float  # requests a second
    repeats: int
    requests: int
    beyond: int
    share_low: float  # the interval of the true share, 95 %
    share_high: float
    percentile: float | None  # the objective's, in seconds; None: more than the allowed share have no latency
    verdict: str  # kept, missed, unclear


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What the pilot said of the search behind it; `seconds` if the server did one request after the other."""

    requests: int
    seconds: float
    most_seconds: float  # the search ends then, whatever it knows

    @property
    def says(self) -> str:
        return (
            f"about {self.requests:,} requests, at one after the other {spoken(self.seconds)}; "
            f"it ends within {spoken(self.most_seconds)}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCapacity:
    """Ends of the interval are requests a second; None: no load was found on that side."""

    objective: str  # as it was asked for
    bound: float  # seconds
    allowed: float  # the share of requests that may be beyond it
    low: float | None = None  # the highest load that surely keeps it
    high: float | None = None  # the lowest one that surely does not
    verdict: str = UNCLEAR  # found, unclear, none
    says: str = ""
    loads: list[LoadVerdict] = field(default_factory=list)
    forecast: Forecast | None = None  # None: the pilot did not end


def verdict_of(low: float | None, high: float | None, rows: Sequence[LoadVerdict], allowed: float) -> tuple[str, str]:
    """Of a search whose highest load that surely keeps the objective and lowest one that surely misses it are these."""
    kept = max((one.load for one in rows if one.share_high < allowed), default=0.0)
    missed = min((one.load for one in rows if one.share_low > allowed), default=kept)
    if missed < kept:
        return UNCLEAR, (
            f"{missed:g} req/s missed it and {kept:g} kept it: the machine is noisier than the answer; repeat"
        )
    if low is not None and high is not None:
        between = f"kept at {low:g} req/s, missed at {high:g}"
        if high <= WIDEST * low:
            return FOUND, between
        return UNCLEAR, f"{between}; between them the requests tell nothing (more time, or a quieter machine)"
    if low is not None:
        return UNCLEAR, f"kept at {low:g} req/s; no load was found that surely misses it"
    if high is not None:
        return UNCLEAR, f"missed at {high:g} req/s; no load was found that surely keeps it"
    return UNCLEAR, "no load has a verdict"


def spoken(seconds: float) -> str:
    """A time as people say it."""
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min"
