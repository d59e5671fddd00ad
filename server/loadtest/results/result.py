"""All that a run found, as it is written to JSON and read again: steps with their records, server, client, verdicts."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from server.loadtest.results.client_load import ClientLoad
from server.loadtest.results.hit_rates import HitRate
from server.loadtest.results.leaks import LeakCheck, Snapshot
from server.loadtest.results.measures import FORMULAS, Record, RequirementResult, Summary

FORMAT = 1
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
    formulas: dict[str, str] = field(default_factory=lambda: FORMULAS)

    @property
    def failures(self) -> list[str]:
        """Why the exit code is not 0; empty where it is."""
        found = [f"missed in {one.step}: {one.text}" for one in self.outcomes if not one.met]
        found += [f"leak: {one.name}: {one.says}" for one in self.findings if one.verdict == "leaked"]
        wrong = sum(step.summary.wrong for step in self.steps)
        if wrong:
            found.append(f"{wrong} wrong answers")
        if not any(step.summary.answered for step in self.steps):
            found.append("no request was answered")
        return found

    @property
    def found_again(self) -> str:
        """The hit rates of the run in a line."""
        return ", ".join(f"{name} {one.says}" for name, one in self.hit_rates.items())

    @property
    def knee(self) -> StepResult | None:
        """The highest load that was carried: nearly all of its requests were answered and kept the objectives."""
        carried = [step for step in self.steps if step.summary.good_share >= GOOD_SHARE]
        return max(carried, key=lambda step: step.load, default=None)


def write_json(result: RunResult, path: Path) -> None:
    """The whole of it, every record included."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1))


def read_json(path: Path) -> RunResult:
    """Raises ValueError, OSError."""
    try:
        result = msgspec.json.decode(path.read_bytes(), type=RunResult)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path}: {error}") from None
    if result.format != FORMAT:
        raise ValueError(f"{path}: written in format {result.format}; this version reads {FORMAT}")
    return result
