"""The figures as text and as rows: what is printed at the end of a run, and the CSV with a line for each request."""

import csv
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from server.loadtest.results.measures import Record, Spread
from server.loadtest.results.result import RunResult, StepResult

SHOWN = ("mean", "p50", "p90", "p95", "p99", "max")
DERIVED = ("wait", "ttft", "tpot", "e2el")
LEFT_OUT = {"gaps", "stages", "answer"}


def milliseconds(seconds: float) -> str:
    """Three digits or more."""
    value = seconds * 1000
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def latency_rows(latencies: Mapping[str, Spread]) -> list[list[str]]:
    """A row for each, in milliseconds."""
    return [[name, f"{one['n']:.0f}", *(milliseconds(one[s]) for s in SHOWN)] for name, one in latencies.items()]


def step_text(step: StepResult, *, objectives: bool) -> str:
    """One step as lines. objectives: there were some to keep."""
    found = step.summary
    share = f", {found.good_share:.1%} within the objectives ({found.goodput:.2f} req/s)" if objectives else ""
    lines = [
        f"{step.label}: {found.requests} requests in {found.seconds:.1f} s: {found.answered} answered, "
        f"{found.failed} failed, {found.cancelled} cancelled{share}",
        f"  {found.request_rate:.2f} req/s, {found.prompt_rate:.0f} prompt tok/s, {found.output_rate:.0f} output "
        f"tok/s, {found.concurrency:.1f} at once",
    ]
    if found.checked:
        lines.append(f"  answers checked: {found.checked}, wrong: {found.wrong}")
    lines += [f"  {count} x {error}" for error, count in found.errors.items()]
    lines += aligned([["ms", "n", *SHOWN], *latency_rows(found.latencies)])
    if found.stages:
        lines += aligned([["server, ms", "n", *SHOWN], *latency_rows(found.stages)])
    return "\n".join(lines)


def aligned(rows: list[list[str]]) -> list[str]:
    """The first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  "
        + row[0].ljust(widths[0])
        + "".join(f"  {cell.rjust(width)}" for cell, width in zip(row[1:], widths[1:], strict=True))
        for row in rows
    ]


def result_text(result: RunResult) -> str:
    """A whole run as lines."""
    lines = [f"{result.target}, model {result.model or 'not named'}", ""]
    lines += [step_text(step, objectives=bool(result.objectives)) + "\n" for step in result.steps]
    if len(result.steps) > 1 and result.objectives:
        knee = result.knee
        lines.append(f"highest load that was carried: {knee.label if knee else 'none'}\n")
    lines += [f"hit rates: {result.found_again}", f"server afterwards: {result.leak}"]
    lines += [f"  {one.verdict}: {one.name}: {one.says}" for one in result.findings if one.verdict != "clean"]
    client = result.client
    lines.append(f"client: {client.cpu:.0%} of a core, loop late by {milliseconds(client.lag_p99)} ms (p99)")
    lines += [f"  WARNING: {warning}" for warning in client.warnings]
    lines += [f"note: {note}" for note in result.notes]
    lines += ["", "how it is computed:", *(f"  {name}: {text}" for name, text in result.formulas.items())]
    if result.failures:
        lines += ["", *(f"FAILED: {failure}" for failure in result.failures)]
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
