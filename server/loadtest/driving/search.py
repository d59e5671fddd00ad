"""The search for the highest load that keeps an objective: which load is measured next, and what is known of each.

It sends nothing and knows no clock. One repeat of each load tells roughly where the capacity is, by doubling and then
bisection. Then the loads a little above and below it are repeated until each has a verdict: a binomial test of the
share of requests beyond the objective, by what these requests are worth (intervals.py), after 1, 2, 4, 8, 16 and 32
repeats. So loads far from the capacity end early.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from server.loadtest.results.capacity import KEPT, MISSED, UNCLEAR, WIDEST, LoadCapacity, LoadVerdict, verdict_of
from server.loadtest.results.intervals import LEVEL, Evidence, evidence

LOOKS = (1, 2, 4, 8, 16, 32)  # repeats
WRONG = 0.02
NEAR, NEAR_LOOK = 1.5, 8
NARROW = 1.24  # how far apart, as a factor, the two loads are that make the interval
UP = 0.45  # of that factor, by which the upper one is above the capacity: what is kept is harder to show
FREE = 1.04  # what is left of that factor, at least, on both sides of unclear loads
CLOSE = 1.15  # of single repeats: how far apart the highest below the allowed share and the lowest above it end
FEWEST, TAIL = 400, 5  # requests of a repeat: at least; of these beyond the objective at the capacity
WARM = 0.2  # requests before those of a repeat, as a share of them: the queue fills, and they are not measured
CONFIRMED = 3  # repeats of each end of the interval, in turns, behind their verdicts: the machine may have changed
STEPS = 24  # loads that are tried once, at most
MOVES = 4  # how often the two loads may turn out to be the wrong ones

Latencies = npt.NDArray[np.float64]


def repeat_length(allowed: float) -> int:
    """Measured requests of a repeat. allowed: the share that may be beyond the objective."""
    return max(FEWEST, math.ceil(TAIL / allowed - 1e-9))


def rounded(rate: float) -> float:
    """To three digits: a load that is asked for again is the same one."""
    return float(f"{rate:.3g}")


def hopeless(allowed: float, requests: int) -> int:
    """How many of a repeat's requests are beyond the objective when there is no use in sending the others."""
    return math.ceil(requests * min(10 * allowed, (1 + 3 * allowed) / 4))


@dataclass(slots=True)
class Load:
    """One load and its repeats: of each the latency of every measured request in the order in which they were due,
    in seconds; inf of one that has none."""

    rate: float
    repeats: list[Latencies] = field(default_factory=list)
    verdict: str | None = None  # None: not decided, and another repeat may
    confirmed: int = 0  # repeats behind its verdict

    def share(self, bound: float) -> float:
        """Of requests that were beyond the bound."""
        return float((np.concatenate(self.repeats) > bound).mean())

    def without_worst(self, bound: float) -> float:
        """That share of all repeats but the worst one, which may have met a bad moment of the machine."""
        shares = sorted(float((one > bound).mean()) for one in self.repeats)[:-1]
        return sum(shares) / len(shares) if shares else 0.0

    def evidence(self, bound: float, allowed: float, wrong: float = WRONG) -> Evidence:
        """What its requests are worth, by how alike its slowest are: as many as may be beyond the objective."""
        own = np.quantile(np.concatenate(self.repeats), 1 - allowed, method="lower")
        beyond, slowest = [one > bound for one in self.repeats], [one > own for one in self.repeats]
        return evidence(beyond, slowest if any(one.any() for one in slowest) else beyond, wrong)

    def judge(self, bound: float, allowed: float) -> None:
        """Take the verdict, if this is the time for one."""
        looks = len(self.repeats)
        if looks not in LOOKS and not self.confirmed:
            return
        found, share = self.evidence(bound, allowed), self.share(bound)
        self.verdict = None
        if found.at_most(allowed) < WRONG:
            self.verdict = KEPT
        elif found.at_least(allowed) < WRONG and self.without_worst(bound) > allowed:
            self.verdict = MISSED
        elif looks >= LOOKS[-1] or (looks >= NEAR_LOOK and allowed / NEAR <= share <= allowed * NEAR):
            self.verdict = UNCLEAR


class Search:
    """Which load is measured next. `add` takes what came of it."""

    def __init__(self, bound: float, allowed: float, start: float) -> None:
        """bound: seconds; allowed: the share of requests that may be beyond it; start: the load to begin with."""
        self.bound, self.allowed, self.start = bound, allowed, start
        self.loads: dict[float, Load] = {}  # by requests a second
        self.centre: float | None = None  # where the capacity is by single repeats
        self.moves = 0

    def next(self) -> float | None:
        """The load of the next repeat, in requests a second; None: there is nothing more to ask."""
        if self.centre is None:
            rate = self.tried_once()
            if rate is not None:
                return rate
        while self.centre is not None and self.moves <= MOVES:
            unclear = self.unclear()
            if unclear and max(unclear) > min(unclear) * NARROW / FREE:
                return None
            low, high = self.ends()
            if low and high and high.rate <= WIDEST * low.rate:
                last = min((high, low), key=lambda one: one.confirmed)
                return last.rate if last.confirmed < CONFIRMED else None
            above = rounded(self.centre * NARROW**UP)
            below = rounded(above / NARROW)
            for rate, wanted in ((above, MISSED), (below, KEPT)):
                verdict = self.loads[rate].verdict if rate in self.loads else None
                if verdict is None:
                    return rate
                if verdict != wanted:
                    self.move(verdict)
                    break
            else:
                return None
        return None

    def unclear(self) -> list[float]:
        """Loads of which enough repeats gave no verdict."""
        return [rate for rate, load in self.loads.items() if load.verdict == UNCLEAR]

    def move(self, verdict: str) -> None:
        """The two loads were the wrong ones: away from the one that has the verdict of the other side, or around
        those that are unclear."""
        assert self.centre is not None
        self.moves += 1
        if verdict == UNCLEAR:
            self.centre = math.sqrt(min(self.unclear()) * max(self.unclear()))
        else:
            self.centre *= NARROW if verdict == KEPT else 1 / NARROW

    def tried_once(self) -> float | None:
        """The next load of the doubling and the bisection; None: both are over, and `centre` is where they ended."""
        shares = {rate: load.share(self.bound) for rate, load in self.loads.items()}
        above = min((rate for rate, share in shares.items() if share > self.allowed), default=None)
        below = max((rate for rate in shares if above is None or rate < above), default=None)
        if len(shares) >= STEPS:
            return None
        if above is None:
            return rounded(self.start if below is None else below * 2)
        if below is None:
            return rounded(above / math.sqrt(2))
        if above / below > CLOSE:
            return rounded(math.sqrt(above * below))
        self.centre = math.sqrt(above * below)
        return None

    def add(self, rate: float, values: Sequence[float]) -> None:
        """One repeat of the load that was asked for."""
        load = self.loads.setdefault(rate, Load(rate))
        load.confirmed += load.verdict is not None
        load.repeats.append(np.asarray(values, np.float64))
        load.judge(self.bound, self.allowed)

    def ends(self) -> tuple[Load | None, Load | None]:
        """The highest load that surely keeps the objective below the lowest one that surely misses it, and that."""
        loads = [self.loads[rate] for rate in sorted(self.loads)]
        high = next((one for one in loads if one.verdict == MISSED), None)
        kept = [one for one in loads if one.verdict == KEPT and (high is None or one.rate < high.rate)]
        return (kept[-1] if kept else None), high

    def capacity(self, objective: str) -> LoadCapacity:
        """What is known now."""
        low, high = (None if end is None else end.rate for end in self.ends())
        rows = [self.row(self.loads[rate]) for rate in sorted(self.loads)]
        verdict, says = verdict_of(low, high, rows, self.allowed)
        return LoadCapacity(
            objective=objective, bound=self.bound, allowed=self.allowed, low=low, high=high, verdict=verdict, says=says,
            loads=rows,
        )  # fmt: skip

    def row(self, load: Load) -> LoadVerdict:
        """One load as it is reported."""
        values = np.concatenate(load.repeats)
        low, high = load.evidence(self.bound, self.allowed, (1 - LEVEL) / 2).interval()
        percentile = float(np.quantile(values, 1 - self.allowed, method="higher"))
        return LoadVerdict(
            load=load.rate, repeats=len(load.repeats), requests=len(values), beyond=int((values > self.bound).sum()),
            share_low=low, share_high=high, percentile=percentile if math.isfinite(percentile) else None,
            verdict=load.verdict or UNCLEAR,
        )  # fmt: skip
