"""The report: one HTML file with its figures and plots inside, which opens without a network."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from jinja2 import Environment

from server.loadtest.results.leaks import MIB, Snapshot, value_of
from server.loadtest.results.measures import Record, values_of
from server.loadtest.results.plots import Point, Series, cumulative, plot, stacked_bars
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.results.table import SHOWN, latency_rows

TEMPLATE = Path(__file__).with_name("report.html.jinja")
RUN_SECONDS = "seconds of the run"
Plot = tuple[str, str]  # its title, and SVG


def write_page(result: RunResult, path: Path) -> None:
    """Raises OSError."""
    path.write_text(page(result), encoding="utf-8")


def page(result: RunResult) -> str:
    """The whole file. Whatever a server or a file said is escaped by the template."""
    return (
        Environment(autoescape=True)
        .from_string(TEMPLATE.read_text(encoding="utf-8"))
        .render(
            result=result,
            met=list(dict.fromkeys(one.text for one in result.outcomes if one.met)),
            sweep=sweep_plots(result.steps) if len(result.steps) > 1 else None,
            steps=[step_section(step) for step in result.steps],
            server=server_plots(result.timeline),
            findings=[
                [one.verdict, one.name, _plain(one.before), _plain(one.after), one.says] for one in result.findings
            ],
            client=client_plots(result),
        )
    )


def sweep_plots(steps: Sequence[StepResult]) -> list[Plot]:
    """What each load of a sweep gave."""
    rates = [
        Series(name, [(step.load, getattr(step.summary, name)) for step in steps])
        for name in ("request_rate", "goodput")
    ]
    curves = []
    for name in ("ttft", "e2el"):
        measured = [step.summary for step in steps if name in step.summary.latencies]
        for q in ("p50", "p99"):
            points = [(one.request_rate, 1000 * one.latencies[name].statistic(q)) for one in measured]
            curves.append(Series(f"{name} {q}", points))
    return [
        ("Answered by load", plot(rates, "load", "requests / s")),
        ("Latency by what was answered", plot(curves, "answered requests / s", "ms")),
    ]


def step_section(step: StepResult) -> dict[str, Any]:
    """One load: its tables and plots."""
    answered = [record for record in step.records if record.answered]
    by_time = [
        Series(name, [(one.sent, one.values(name)[0] * 1000) for one in answered if one.values(name)], "dots")
        for name in ("e2el", "ttft")
    ]
    shares = [
        Series(name, cumulative([1000 * value for value in values_of(name, step.records)]))
        for name in ("ttft", "tpot", "itl", "e2el")
    ]
    in_flight = [Series("in flight", requests_in_flight(step.records), "steps")]
    plots = [
        ("Latency of each request", plot(by_time, f"{RUN_SECONDS}, when it was sent", "ms", x_from_zero=False)),
        ("Share of values that are at most", plot(shares, "ms", "%")),
        ("Answers and tokens", plot(rates(answered), RUN_SECONDS, "per second", x_from_zero=False)),
        ("Requests in flight", plot(in_flight, RUN_SECONDS, "requests", x_from_zero=False)),
    ]
    return {
        "label": step.label, "errors": step.summary.errors, "head": ["ms", "n", *SHOWN], "plots": plots,
        "latencies": latency_rows(step.summary.latencies), "stages": latency_rows(step.summary.stages),
        "bars": stage_bars(step),
    }  # fmt: skip


def rates(records: Sequence[Record]) -> list[Series]:
    """Answers and tens of tokens that ended in each second."""
    answers = Counter(int(record.ended) for record in records)
    tokens: Counter[int] = Counter()
    for record in records:
        tokens[int(record.ended)] += record.output_tokens or 0
    seconds = range(min(answers, default=0), max(answers, default=-1) + 1)
    return [
        Series("answers", [(float(s), float(answers[s])) for s in seconds]),
        Series("output tokens / 10", [(float(s), tokens[s] / 10) for s in seconds]),
    ]


def requests_in_flight(records: Sequence[Record]) -> list[Point]:
    """How many there were, at each change."""
    changes = sorted([(one.sent, 1) for one in records] + [(one.ended, -1) for one in records])
    counts = accumulate(change for _, change in changes)
    return [(at, float(count)) for (at, _), count in zip(changes, counts, strict=True)]


def stage_bars(step: StepResult) -> str | None:
    """One bar for each kind of request, of the stages that follow one another. None: the server told none."""
    names = [name for name in step.summary.stages if "." not in name]
    told: dict[str, list[dict[str, float]]] = {}
    for record in step.records:
        if record.stages and record.answered:
            told.setdefault(record.kind, []).append(record.stages)
    bars = [
        (kind, [1000 * sum(stages.get(name, 0.0) for stages in some) / len(some) for name in names])
        for kind, some in told.items()
    ]
    return stacked_bars(bars, names, "ms") if bars and names else None


def server_plots(timeline: Sequence[Snapshot]) -> list[Plot]:
    """The server's own gauges while the run went on."""

    def curve(name: str, metric: str, labels: Mapping[str, str] | None = None, scale: float = 1.0) -> Series:
        found = ((one.at, value_of(one.metrics, metric, labels)) for one in timeline)
        return Series(name, [(at, value / scale) for at, value in found if value is not None])

    shown = (
        ("Shared memory", "MiB", [curve(state, "shm_bytes", {"state": state}, MIB) for state in ("leased", "idle")]),
        ("Memory of the server process", "MiB", [curve("resident", "process_resident_memory_bytes", scale=MIB)]),
        ("Requests in the server", "requests",
         [curve(state, f"num_requests_{state}") for state in ("running", "waiting")]),
        ("Open descriptors", "descriptors", [curve("open descriptors", "process_open_fds")]),
    )  # fmt: skip
    return [
        (title, plot(series, RUN_SECONDS, unit, x_from_zero=False))
        for title, unit, series in shown
        if any(one.points for one in series)
    ]


def client_plots(result: RunResult) -> list[Plot]:
    """What the client itself was like."""
    samples = result.client.samples
    cpu = [
        Series("used", [(one.at, 100 * one.cpu) for one in samples]),
        Series("waited for", [(one.at, 100 * one.starved) for one in samples]),
    ]
    lag = [Series("late", [(one.at, 1000 * one.lag_p99) for one in samples])]
    return [
        ("Processor", plot(cpu, RUN_SECONDS, "% of a core", x_from_zero=False)),
        ("Lateness of its loop, p99", plot(lag, RUN_SECONDS, "ms", x_from_zero=False)),
    ]


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
