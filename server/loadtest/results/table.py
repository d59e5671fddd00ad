"""The figures as text and as rows: what is printed at the end of a run, and the CSV with a line for each request."""

import csv
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from server.loadtest.results.capacity import FOUND, LoadCapacity
from server.loadtest.results.measures import Record, Spread, fewest
from server.loadtest.results.result import RunResult, StepResult

SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")
DERIVED = ("wait", "ttft", "tpot", "e2el")
MARK = "*"
MARKED = f"{MARK} of fewer than 1/(1-q) requests: no more than what the slowest of them says"
LEFT_OUT = {"gaps", "stages", "answer"}


def milliseconds(seconds: float) -> str:
    """Three digits or more."""
    value = seconds * 1000
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def latency_rows(latencies: Mapping[str, Spread], requests: int) -> list[list[str]]:
    """A row for each, in milliseconds. requests: of the step; a percentile that needs more of them is marked."""
    return [
        [name, f"{one['n']:.0f}", *(milliseconds(one[s]) + MARK * thin(s, min(requests, one["n"])) for s in SHOWN)]
        for name, one in latencies.items()
    ]


def thin(statistic: str, n: float) -> bool:
    """Whether a percentile of so few requests says no more than the slowest of them does."""
    return statistic[0] == "p" and n < fewest(float(statistic[1:]) / 100)


def step_text(step: StepResult, *, objectives: bool) -> str:
    """One step as lines. objectives: there were some to keep."""
    found = step.summary
    share = (
        f", {found.good_share:.1%} within the objectives (95 %: {found.good_low:.1%} to {found.good_high:.1%}; "
        f"{found.goodput:.2f} req/s)"
    ) if objectives else ""  # fmt: skip
    lines = [
        f"{step.label}: {found.requests} requests in {found.seconds:.1f} s: {found.answered} answered, "
        f"{found.failed} failed, {found.cancelled} cancelled{share}",
        f"  {found.request_rate:.2f} req/s, {found.prompt_rate:.0f} prompt tok/s, {found.output_rate:.0f} output "
        f"tok/s, {found.concurrency:.1f} at once",
    ]
    if found.checked:
        lines.append(f"  answers checked: {found.checked}, wrong: {found.wrong}")
    lines += [f"  {count} x {error}" for error, count in found.errors.items()]
    lines += aligned([["ms", "n", *SHOWN], *latency_rows(found.latencies, found.requests)])
    if found.stages:
        lines += aligned([["server, ms", "n", *SHOWN], *latency_rows(found.stages, found.requests)])
    return "\n".join(lines)


def sweep_rows(result: RunResult) -> list[list[str]]:
    """A table of the loads of a sweep: of each objective its p99 as it counts, from when a request was due."""
    figures = [f"{name}.p99, ms" for name in result.objectives]
    rows = [["load", "requests", "req/s", *figures, "kept", "95 %: from", "to", "objectives"]]
    for step in result.steps:
        found = step.summary
        tails = [found.objective_p99.get(name) for name in result.objectives]
        marked = MARK * thin("p99", found.requests)
        rows.append([
            step.label, str(found.requests), f"{found.request_rate:.2f}",
            *("none" if one is None else milliseconds(one) + marked for one in tails),
            f"{found.good_share:.1%}", f"{found.good_low:.1%}", f"{found.good_high:.1%}", result.step_verdict(step),
        ])  # fmt: skip
    return rows


def capacity_rows(capacity: LoadCapacity) -> list[list[str]]:
    """A table of the loads of a search, each with its verdict."""
    figure = capacity.objective.partition("<")[0]
    head = ["req/s", "repeats", "requests", f"{figure}, ms", "beyond", "95 %: from", "to", "objective"]
    return [head] + [
        [f"{one.load:g}", str(one.repeats), str(one.requests),
         "none" if one.percentile is None else milliseconds(one.percentile), f"{one.beyond / one.requests:.2%}",
         f"{one.share_low:.2%}", f"{one.share_high:.2%}", one.verdict]
        for one in capacity.loads
    ]  # fmt: skip


def capacity_text(capacity: LoadCapacity) -> str:
    """The answer of a search in a line."""
    ends = ["?" if end is None else f"{end:g}" for end in (capacity.low, capacity.high)]
    answer = f"from {ends[0]} to {ends[1]} req/s" if capacity.verdict == FOUND else capacity.verdict
    return f"capacity for {capacity.objective}: {answer} ({capacity.says})"


def aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + row[0].ljust(widths[0])
        + "".join(f"  {cell.rjust(width)}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def result_text(result: RunResult, *, formulas: bool = False) -> str:
    """A whole run as lines, its answer behind its figures."""
    lines = [f"{result.target}, model {result.model or 'not named'}", ""]
    if result.capacity is None:
        lines += [step_text(step, objectives=bool(result.objectives)) + "\n" for step in result.steps]
    else:
        lines += [*aligned(capacity_rows(result.capacity)), ""]
    if any(MARK in line for line in lines):
        lines += [MARKED, ""]
    lines += [f"hit rates: {result.found_again}", f"server afterwards: {result.leak}"]
    lines += [f"  {one.verdict}: {one.name}: {one.says}" for one in result.findings if one.verdict != "clean"]
    client = result.client
    lines.append(f"client: {client.cpu:.0%} of a core, loop late by {milliseconds(client.lag_p99)} ms (p99)")
    lines += [f"  WARNING: {warning}" for warning in client.warnings]
    lines.append(f"connections: {result.reconnected}")
    lines += [f"note: {note}" for note in result.notes]
    if result.failures:
        lines += ["", *(f"FAILED: {failure}" for failure in result.failures)]
    if result.unclear:
        lines += ["", *(f"UNCLEAR: {what}" for what in result.unclear)]
    if result.capacity is not None:
        lines += ["", capacity_text(result.capacity)]
    elif len(result.steps) > 1 and result.objectives:
        lines += ["", *aligned(sweep_rows(result)), "", result.sweep_says]
    if formulas:
        lines += ["", "how it is computed:", *(f"  {name}: {text}" for name, text in result.formulas.items())]
    return "\n".join(lines)


def write_csv(result: RunResult, path: Path) -> None:
    """A line for each request of all steps; stages in columns of their own."""
    names = [field.name for field in fields(Record) if field.name not in LEFT_OUT]
    records = [record for step in result.steps for record in step.records]
    stages = list(dict.fromkeys(stage for record in records for stage in record.stages))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *DERIVED, *(f"stage_{stage}" for stage in stages)])
        for record in records:
            values = [getattr(record, name) for name in (*names, *DERIVED)]
            writer.writerow([*map(cell, values), *(cell(record.stages.get(stage)) for stage in stages)])


def cell(value: object) -> object:
    """Seconds to the microsecond, nothing for None."""
    return "" if value is None else round(value, 6) if isinstance(value, float) else value
