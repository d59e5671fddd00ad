"""All that a run found, as it is written to JSON and read again: steps with their records, server, client, verdicts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

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
    notes: list[str] = field(default_factory=list)
    interrupted: bool = False
    vanished: bool = False  # the server answered no more when all was over
    most_errors: float = 0.01  # share of the measured requests that may fail
    formulas: dict[str, str] = field(default_factory=lambda: FORMULAS)

    @property
    def too_many_errors(self) -> bool:
        found = [step.summary for step in self.steps]
        return sum(one.failed for one in found) > self.most_errors * sum(one.requests for one in found)

    @property
    def failures(self) -> list[str]:
        """Why the exit code is not 0; empty where it is."""
        found = ["the server vanished: it answers no more"] if self.vanished else []
        found += [f"more than {self.most_errors:.4g} of the requests failed"] if self.too_many_errors else []
        found += [f"missed in {one.step}: {one.text}" for one in self.outcomes if not one.met]
        found += [f"leak: {one.name}: {one.says}" for one in self.findings if one.verdict == "leaked"]
        wrong = sum(step.summary.wrong for step in self.steps)
        if wrong:
            found.append(f"{wrong} wrong answers")
        if not any(step.summary.answered for step in self.steps):
            ramped = self.steps and not any(step.summary.requests for step in self.steps)
            found.append("no request was measured: all were sent in the ramp" if ramped else "no request was answered")
        return found

    @property
    def found_again(self) -> str:
        """The hit rates of the run in a line."""
        return ", ".join(f"{name} {one.says}" for name, one in self.hit_rates.items())

    @property
    def knee(self) -> StepResult | None:
        """The highest load that was carried: nearly all of its requests kept the objectives; None without any."""
        carried = [step for step in self.steps if self.objectives and step.summary.good_share >= GOOD_SHARE]
        return max(carried, key=lambda step: step.load, default=None)


def write_json(result: RunResult, path: Path) -> None:
    """The whole of it, every record included."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))


def read_json(path: Path) -> RunResult:
    """Raises ValueError, OSError."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        if found.get("format") != FORMAT:
            raise ValueError(f"{path}: written in format {found.get('format')}; this version reads {FORMAT}")
        return msgspec.convert(found, RunResult)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from None
