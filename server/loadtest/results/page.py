"""The report: one HTML file with its figures and plots inside, which opens without a network."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path

from jinja2 import Template

from server.loadtest.results.capacity import LoadCapacity
from server.loadtest.results.leaks import CHILDREN, MIB, RESIDENT, Snapshot, value_of
from server.loadtest.results.plots import plot, stacked_bars
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.results.table import (
    MARK,
    MARKED,
    SHOWN,
    capacity_rows,
    capacity_text,
    latency_rows,
    sweep_rows,
)

TEMPLATE = Path(__file__).with_name("report.html.jinja")
Plot = tuple[str, str]  # its title, and SVG
GAUGES = (  # of the server: a plot's title, its unit and what that is, its curves by name: metric and label
    ("Shared memory", "MiB", MIB, {state: ("shm_bytes", f'state="{state}"') for state in ("leased", "idle")}),
    ("Memory of its processes", "MiB", MIB, {"server": (RESIDENT, ""), "engine": (CHILDREN, 'role="engine"'),
                                             "workers": (CHILDREN, 'worker"')}),
    ("Requests in the server", "requests", 1, {name: (f"num_requests_{name}", "") for name in ("running", "waiting")}),
    ("Open descriptors", "descriptors", 1, {"open descriptors": ("process_open_fds", "")}),
)  # fmt: skip

_by_time = partial(plot, x_title="seconds of the run", x_from_zero=False)


def write_page(result: RunResult, path: Path) -> None:
    """Raises OSError."""
    path.write_text(page(result), encoding="utf-8")


def page(result: RunResult) -> str:
    """The whole file. Whatever a server or a file said is escaped by the template."""
    rendered: str = Template(TEMPLATE.read_text(encoding="utf-8"), autoescape=True).render(
        result=result,
        met=list(dict.fromkeys(one.text for one in result.outcomes if one.met)),
        sweep=sweep_plots(result) if len(result.steps) > 1 and result.capacity is None else None,
        loads=sweep_rows(result),
        capacity=result.capacity and capacity_parts(result.capacity),
        steps=[(step, stage_bars(step), step_plots(step)) for step in detailed(result)],
        thin=[step for step in detailed(result) if any(MARK in cell for row in rows_of(step) for cell in row)],
        marked=MARKED,
        head=["ms", "n", *SHOWN],
        rows=latency_rows,
        server=server_plots(result.timeline),
        findings=[[one.verdict, one.name, one.says] for one in result.findings],
    )
    return rendered


def detailed(result: RunResult) -> list[StepResult]:
    """The steps that have a part of their own: of a search, which has many, the one that stands for it."""
    return result.steps if result.capacity is None else [result.shown] if result.shown else []


def rows_of(step: StepResult) -> list[list[str]]:
    """All of its latencies and stages."""
    return latency_rows(step.summary.latencies | step.summary.stages, step.summary.requests)


def capacity_parts(capacity: LoadCapacity) -> tuple[str, list[list[str]], list[Plot]]:
    """Of a search: its answer, its table with a head, and the objective's percentile by load as a plot."""
    figure = capacity.objective.partition("<")[0]
    known = [(one.load, 1000 * one.percentile) for one in capacity.loads if one.percentile is not None]
    shares = [(one.load, 100 * one.beyond / one.requests) for one in capacity.loads]
    plots = [
        (f"{figure} by load", objective_plot({figure: known}, {"objective": capacity.bound})),
        ("Requests beyond the objective by load",
         plot({"beyond": shares, "allowed": level(shares, 100 * capacity.allowed)}, "requests / s", "%")),
    ]  # fmt: skip
    return capacity_text(capacity), capacity_rows(capacity), plots


def objective_plot(curves: Mapping[str, Sequence[tuple[float, float]]], bounds: Mapping[str, float]) -> str:
    """Percentiles by load, and each bound in seconds as a line across."""
    points = [point for curve in curves.values() for point in curve]
    lines = {name: level(points, 1000 * bound) for name, bound in bounds.items()}
    return plot({**curves, **lines}, "load", "ms")


def level(points: Sequence[tuple[float, float]], value: float) -> list[tuple[float, float]]:
    """A line across a plot of these points."""
    loads = [load for load, _ in points]
    return [(min(loads), value), (max(loads), value)] if loads else []


def sweep_plots(result: RunResult) -> list[Plot]:
    """What each load of a sweep gave."""
    steps = result.steps
    rates = {name: [(step.load, getattr(step.summary, name)) for step in steps] for name in ("request_rate", "goodput")}
    found = [(step.summary.request_rate, step.summary.figure) for step in steps]
    curves = {
        name: [(rate, 1000 * value) for rate, figure in found if (value := figure(name.replace(" ", "."))) is not None]
        for name in ("ttft p50", "ttft p99", "e2el p50", "e2el p99")
    }
    tails = {
        f"{name}.p99": [(step.load, 1000 * value) for step in steps
                        if (value := step.summary.objective_p99.get(name)) is not None]
        for name in result.objectives
    }  # fmt: skip
    bounds = {f"{name} objective": bound for name, bound in result.objectives.items()}
    return [
        *([("Objectives by load", objective_plot(tails, bounds))] if tails else []),
        ("Answered by load", plot(rates, "load", "requests / s")),
        ("Latency by what was answered", plot(curves, "answered requests / s", "ms")),
    ]


def step_plots(step: StepResult) -> list[Plot]:
    """What one load was like."""
    times = {
        name: [(one.sent, 1000 * value) for one in step.records if one.answered for value in one.values(name)]
        for name in ("e2el", "ttft")
    }
    changes = sorted([(one.sent, 1) for one in step.records] + [(one.ended, -1) for one in step.records])
    counts = accumulate(change for _, change in changes)
    in_flight = {"in flight": [(at, float(count)) for (at, _), count in zip(changes, counts, strict=True)]}
    return [
        ("Latency of each request",
         plot(times, "seconds of the run, when it was sent", "ms", style="dots", x_from_zero=False)),
        ("Requests in flight", _by_time(in_flight, y_title="requests", style="steps")),
    ]  # fmt: skip


def stage_bars(step: StepResult) -> str | None:
    """One bar for each kind of request, of the stages that follow one another. None: the server told none."""
    names = [name for name in step.summary.stages if "." not in name]
    told: dict[str, list[dict[str, float]]] = {}
    for record in step.records:
        if record.stages and record.answered:
            told.setdefault(record.kind, []).append(record.stages)
    bars = {
        kind: [1000 * sum(stages.get(name, 0.0) for stages in some) / len(some) for name in names]
        for kind, some in told.items()
    }
    return stacked_bars(bars, names, "ms") if bars and names else None


def server_plots(timeline: Sequence[Snapshot]) -> list[Plot]:
    """The server's own gauges while the run went on: those that it has."""
    found = []
    for title, unit, scale, curves in GAUGES:
        series = {
            name: [(one.at, value / scale) for one in timeline if (value := value_of(one.metrics, *gauge)) is not None]
            for name, gauge in curves.items()
        }
        if any(series.values()):
            found.append((title, _by_time(series, y_title=unit)))
    return found
