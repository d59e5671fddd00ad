"""All that a run found, as it is written to JSON and read again: steps with their records, server, client, verdicts."""

import math
from dataclasses import dataclass, field
from itertools import combinations, takewhile
from pathlib import Path
from typing import Any

import msgspec

from server.loadtest.results.capacity import KEPT, MISSED, NONE, UNCLEAR, LoadCapacity
from server.loadtest.results.client_load import ClientLoad
from server.loadtest.results.hit_rates import HitRate
from server.loadtest.results.leaks import LeakCheck, Snapshot
from server.loadtest.results.measures import FORMULAS, Record, RequirementResult, Summary

FORMAT = 2
GOOD_SHARE = 0.99  # of a step's requests that must keep the objectives for its load to count as carried


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """One load of a run. `load` is requests a second of an open loop, or streams of a closed one."""

    label: str
    load: float
    summary: Summary
    records: list[Record]


@dataclass(slots=True, kw_only=True)
class RunResult:
    """One run. It is filled while the run goes on."""

    format: int = FORMAT
    version: str = ""
    began: str = ""  # UTC
    target: str = ""
    model: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    objectives: dict[str, float] = field(default_factory=dict)  # seconds, by measure
    steps: list[StepResult] = field(default_factory=list)
    outcomes: list[RequirementResult] = field(default_factory=list)
    findings: list[LeakCheck] = field(default_factory=list)
    leak: str = "unknown"
    client: ClientLoad = field(default_factory=ClientLoad)
    timeline: list[Snapshot] = field(default_factory=list)
    hit_rates: dict[str, HitRate] = field(default_factory=dict)
    media_sent: int = 0
    media_repeated: float = 0.0  # the share of them that had been sent before
    capacity: LoadCapacity | None = None  # of --find
    connections: int = 0  # that were opened for the load
    reconnects: dict[str, int] = field(default_factory=dict)  # connections that the server ended, by when it did
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    vanished: bool = False  # the server answered no more when all was over
    most_errors: float = 0.01  # share of the measured requests that may fail
    formulas: dict[str, str] = field(default_factory=lambda: FORMULAS)

    @property
    def too_many_errors(self) -> bool:
        most = math.inf if self.capacity is None else self.capacity.low or 0.0  # a search goes beyond what is carried
        found = [step.summary for step in self.steps if step.load <= most]
        return sum(one.failed for one in found) > self.most_errors * sum(one.requests for one in found)

    @property
    def failures(self) -> list[str]:
        """Why the exit code is not 0; empty where it is."""
        found = ["the server vanished: it answers no more"] if self.vanished else []
        found += [f"more than {self.most_errors:.4g} of the requests failed"] if self.too_many_errors else []
        found += [f"missed in {one.step}: {one.text}" for one in self.outcomes if not one.met and one.needed is None]
        if self.capacity is not None and self.capacity.verdict == NONE:
            found.append(f"no load keeps {self.capacity.objective}: {self.capacity.says}")
        found += [f"leak: {one.name}: {one.says}" for one in self.findings if one.verdict == "leaked"]
        wrong = sum(step.summary.wrong for step in self.steps)
        if wrong:
            found.append(f"{wrong} wrong answers")
        if not any(step.summary.answered for step in self.steps):
            ramped = self.steps and not any(step.summary.requests for step in self.steps)
            found.append("no request was measured: all were sent in the ramp" if ramped else "no request was answered")
        return found

    @property
    def unclear(self) -> list[str]:
        """What too few requests cannot tell."""
        found = [
            f"{one.text} in {one.step}: {one.requests} requests cannot tell; {one.needed} are needed at least"
            for one in self.outcomes if one.needed is not None
        ]  # fmt: skip
        if self.capacity is not None and self.capacity.verdict == UNCLEAR:
            found.append(f"the capacity for {self.capacity.objective}: {self.capacity.says}")
        return found

    @property
    def found_again(self) -> str:
        """The hit rates of the run in a line."""
        return ", ".join(f"{name} {one.says}" for name, one in self.hit_rates.items())

    @property
    def reconnected(self) -> str:
        """Connections in a line."""
        ended = ", ".join(f"{n} {when}" for when, n in self.reconnects.items())
        return f"{self.connections} opened" + (
            f"; the server closed {sum(self.reconnects.values())}: {ended}" if ended else "; the server closed none"
        )

    @property
    def knee(self) -> StepResult | None:
        """The highest load that was carried, and all below it: nearly all of their requests kept the objectives."""
        steps = sorted(self.steps, key=lambda step: step.load) if self.objectives else []
        return next(reversed([*takewhile(carried, steps)]), None)

    @property
    def uneven(self) -> tuple[StepResult, StepResult] | None:
        """Two steps of which the higher load kept the objectives better, beyond chance; None: there are none."""
        steps = sorted(self.steps, key=lambda step: step.load) if self.objectives else []
        pairs = [(low, high) for low, high in combinations(steps, 2) if low.load < high.load]
        return next((
            (low, high) for low, high in pairs
            if low.summary.good_high < high.summary.good_low or (carried(high) and not carried(low))
        ), None)  # fmt: skip

    def step_verdict(self, step: StepResult) -> str:
        """Of one load of a sweep with objectives."""
        knee = self.knee
        if knee is not None and step.load <= knee.load:
            return KEPT
        return "unclear: repeat" if self.uneven else MISSED

    @property
    def sweep_says(self) -> str:
        """Which load was carried, and whether the steps agree on it."""
        knee, uneven = self.knee, self.uneven
        says = f"highest load that was carried: {knee.label if knee else 'none'}"
        if uneven is None:
            return says
        low, high = (f"{step.label} ({step.summary.good_share:.1%})" for step in uneven)
        rest = f"above {knee.label}" if knee else "of all loads"
        return f"{says}; not monotonic: {high} kept the objectives better than {low}; {rest}: unclear, repeat"

    @property
    def shown(self) -> StepResult | None:
        """The step that stands for the run: the highest load that was carried, else the last one."""
        low = None if self.capacity is None else self.capacity.low
        found = [step for step in self.steps if step.load == low] if low is not None else [self.knee, *self.steps[-1:]]
        steps = [step for step in found if step is not None]
        return (steps[-1] if low is not None else steps[0]) if steps else None


def carried(step: StepResult) -> bool:
    """Nearly all of its requests kept the objectives."""
    return step.summary.good_share >= GOOD_SHARE


def write_json(result: RunResult, path: Path) -> None:
    """The whole of it, every record included."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))


def read_json(path: Path) -> RunResult:
    """Raises ValueError, whose message is a sentence."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if found.get("format") != FORMAT:
            raise ValueError(f"{path}: written in format {found.get('format')}; this version reads {FORMAT}")
        return msgspec.convert(found, RunResult)
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file; runs that --json wrote are compared") from None
    except (OSError, msgspec.MsgspecError) as error:
        raise ValueError(f"{path}: cannot be read as a run that --json wrote: {error}") from None
