"""The report: one HTML file with its figures and plots inside, which opens without a network."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from server.loadtest.results.leaks import MIB, Snapshot, value_of
from server.loadtest.results.measures import LATENCIES, Spread, values_of
from server.loadtest.results.plots import Point, Series, cumulative, plot, stacked_bars
from server.loadtest.results.record import Record
from server.loadtest.results.result import Result, Step
from server.loadtest.results.style import STYLE
from server.loadtest.results.table import SHOWN, latency_rows


def write_page(result: Result, path: Path) -> None:
    """Raises OSError."""
    path.write_text(page(result), encoding="utf-8")


def page(result: Result) -> str:
    """The whole file."""
    parts = [heading(result), tiles(result), verdicts(result)]
    if len(result.steps) > 1:
        parts.append(sweep(result))
    parts += [step_section(step, result) for step in result.steps]
    parts += [server_section(result.timeline), client_section(result), formulas(result)]
    title = f"Load test of {escape(result.target)}"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>'
    return (
        f'<!doctype html><html lang="en"><head>{head}<style>{STYLE}</style></head><body>{"".join(parts)}</body></html>'
    )


def heading(result: Result) -> str:
    said = f"{result.model or 'model not named'} · {result.began} · pixelferry {result.version}"
    return f'<h1>Load test of {escape(result.target)}</h1><p class="soft">{escape(said)}</p>'


def tiles(result: Result) -> str:
    """The figures that are looked for first, of the last step."""
    if not result.steps:
        return ""
    found = result.steps[-1].summary
    failed = "bad" if found.failed else "good"
    shown = [
        ("requests", str(found.requests), ""), ("failed", str(found.failed), failed),
        ("requests / s", f"{found.request_rate:.2f}", ""), ("output tokens / s", f"{found.output_rate:.0f}", ""),
        *((f"{name} p50", _ms(found.latencies.get(name)), "") for name in ("ttft", "tpot", "e2el")),
        ("leaks", result.leak, {"clean": "good", "leaked": "bad"}.get(result.leak, "warn")),
    ]  # fmt: skip
    if result.objectives:
        shown.insert(2, ("within objectives", f"{found.good_share:.1%}", ""))
    cells = (f'<div class="tile"><b class="{kind}">{escape(value)}</b>{name}</div>' for name, value, kind in shown)
    return f'<div class="tiles">{"".join(cells)}</div>'


def _ms(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.percentiles['p50'] * 1000:.1f} ms"


def verdicts(result: Result) -> str:
    """What failed, what warns, what was required."""
    lines = [f'<p class="bad"><b>Failed:</b> {escape(failure)}</p>' for failure in result.failures]
    lines += [f'<p class="warn"><b>The client was slow:</b> {escape(text)}</p>' for text in result.client.warnings]
    lines += [f'<p class="soft">{escape(note)}</p>' for note in result.notes]
    met = [one.text for one in result.outcomes if one.met]
    if met:
        lines.append(f'<p class="good">Met: {escape(", ".join(dict.fromkeys(met)))}</p>')
    return "".join(lines)


def sweep(result: Result) -> str:
    """All steps of a sweep: what each load gave."""

    def curve(name: str, statistic: str) -> list[Point]:
        spreads = [(step.summary.request_rate, step.summary.latencies.get(name)) for step in result.steps]
        return [(rate, spread.percentiles[statistic] * 1000) for rate, spread in spreads if spread is not None]

    rates = [Series(name, [(step.load, getattr(step.summary, name)) for step in result.steps])
             for name in ("request_rate", "goodput")]  # fmt: skip
    curves = [Series(f"{name} {q}", curve(name, q)) for name in ("ttft", "e2el") for q in ("p50", "p99")]
    rows = [sweep_row(step) for step in result.steps]
    head = ["load", "answered / s", "tokens / s", "within objectives", "failed", "ttft p50", "tpot p50", "e2el p50"]
    knee = result.knee
    said = f"Highest load that was carried: {knee.label}" if knee else "No load was carried."
    return (
        f"<h2>Sweep</h2><p>{escape(said)}</p>{card('', table(head, rows))}<div class='grid2'>"
        + card("Answered by load", plot(rates, "load", "requests / s"))
        + card("Latency by what was answered", plot(curves, "answered requests / s", "ms"))
        + "</div>"
    )


def sweep_row(step: Step) -> list[str]:
    found = step.summary
    rates = [f"{found.request_rate:.2f}", f"{found.output_rate:.0f}", f"{found.good_share:.1%}", str(found.failed)]
    return [step.label, *rates, *(_ms(found.latencies.get(name)) for name in ("ttft", "tpot", "e2el"))]


def step_section(step: Step, result: Result) -> str:
    records = [record for record in step.records if record.answered]
    by_time = [Series(name, _over_time(records, name), "dots") for name in ("e2el", "ttft")]
    spreads = [
        Series(name, [(value * 1000, share) for value, share in cumulative(values_of(name, step.records))])
        for name in LATENCIES
        if name not in ("wait", "queue")
    ]
    errors = "".join(f"<p class='bad'>{n} x {escape(error)}</p>" for error, n in step.summary.errors.items())
    head = ["ms", "n", *SHOWN]
    plots = [
        card("Latency of each request", plot(by_time, "seconds of the run, when it was sent", "ms", x_from_zero=False)),
        card("Share of values that are at most", plot([s for s in spreads if s.points], "ms", "%")),
        card("Answers and tokens", plot(_rates(records), "seconds of the run", "per second", x_from_zero=False)),
        card("Requests in flight", plot([Series("in flight", _in_flight(step.records), "steps")], "seconds of the run",
                                        "requests", x_from_zero=False)),
    ]  # fmt: skip
    latencies = card("Latencies", table(head, latency_rows(step.summary.latencies)))
    stages = ""
    if bars := stage_bars(step):
        latencies += card("Where the server spent the time (mean, by kind of request)", bars)
        stages = card("Stages, as the server tells them", table(head, latency_rows(step.summary.stages)))
    return f"<h2>{escape(step.label)}</h2>{errors}<div class='grid2'>{latencies}{''.join(plots)}</div>{stages}"


def _over_time(records: Sequence[Record], name: str) -> list[Point]:
    found = ((record.sent, LATENCIES[name].values(record)) for record in records)
    return [(sent, values[0] * 1000) for sent, values in found if values]


def _rates(records: Sequence[Record]) -> list[Series]:
    """Answers and tens of tokens that ended in each second."""
    answers: dict[int, int] = {}
    tokens: dict[int, float] = {}
    for record in records:
        second = int(record.ended)
        answers[second] = answers.get(second, 0) + 1
        tokens[second] = tokens.get(second, 0) + (record.output_tokens or 0) / 10
    seconds = range(min(answers, default=0), max(answers, default=-1) + 1)
    return [
        Series("answers", [(float(s), float(answers.get(s, 0))) for s in seconds]),
        Series("output tokens / 10", [(float(s), tokens.get(s, 0.0)) for s in seconds]),
    ]


def _in_flight(records: Sequence[Record]) -> list[Point]:
    changes = sorted([(one.sent, 1) for one in records] + [(one.ended, -1) for one in records])
    found, now = [], 0
    for at, change in changes:
        now += change
        found.append((at, float(now)))
    return found


def stage_bars(step: Step) -> str:
    """One bar for each kind of request, of the stages that follow one another."""
    kinds = dict.fromkeys(record.kind for record in step.records if record.stages)
    names = [name for name in step.summary.stages if "." not in name]
    bars = []
    for kind in kinds:
        told = [one.stages for one in step.records if one.kind == kind and one.stages and one.answered]
        if told:
            bars.append((kind, [1000 * sum(stages.get(name, 0.0) for stages in told) / len(told) for name in names]))
    return stacked_bars(bars, names, "ms") if bars and names else ""


def server_section(timeline: Sequence[Snapshot]) -> str:
    """The server's own gauges while the run went on."""

    def curve(metric: str, labels: Mapping[str, str] | None = None, scale: float = 1.0) -> list[Point]:
        found = ((one.at, value_of(one.metrics, metric, labels)) for one in timeline)
        return [(at, value / scale) for at, value in found if value is not None]

    shm = [Series(state, curve("shm_bytes", {"state": state}, MIB)) for state in ("leased", "idle")]
    memory = [Series("resident", curve("process_resident_memory_bytes", scale=MIB))]
    requests = [Series(name.removeprefix("num_requests_"), curve(name))
                for name in ("num_requests_running", "num_requests_waiting")]  # fmt: skip
    descriptors = [Series("open descriptors", curve("process_open_fds"))]
    shown = (
        ("Shared memory", shm, "MiB"),
        ("Memory of the server process", memory, "MiB"),
        ("Requests in the server", requests, "requests"),
        ("Open descriptors", descriptors, "descriptors"),
    )
    cards = [
        card(title, plot(series, "seconds of the run", unit, x_from_zero=False))
        for title, series, unit in shown
        if any(one.points for one in series)
    ]
    return f"<h2>The server meanwhile</h2><div class='grid2'>{''.join(cards)}</div>" if cards else ""


def client_section(result: Result) -> str:
    """Leaks, and what the client itself was like."""
    rows = [[one.verdict, one.name, _plain(one.before), _plain(one.after), one.says] for one in result.findings]
    samples = result.client.samples
    cpu = [Series("used", [(one.at, 100 * one.cpu) for one in samples]),
           Series("waited for", [(one.at, 100 * one.starved) for one in samples])]  # fmt: skip
    lag = [Series("late", [(one.at, 1000 * one.lag_p99) for one in samples])]
    return (
        "<h2>Afterwards</h2>"
        + card("", table(["verdict", "what", "before", "after", ""], rows, text=(1, 4)))
        + "<h2>The client itself</h2><div class='grid2'>"
        + card("Processor", plot(cpu, "seconds of the run", "% of a core", x_from_zero=False))
        + card("Lateness of its loop, p99", plot(lag, "seconds of the run", "ms", x_from_zero=False))
        + "</div>"
    )


def formulas(result: Result) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in result.formulas.items())
    options = "\n".join(f"{name} = {value}" for name, value in result.options.items())
    return f"<h2>How it is computed</h2><dl>{items}</dl><h2>Options</h2><pre class='soft'>{escape(options)}</pre>"


def card(title: str, content: str) -> str:
    return f'<div class="card">{f"<h3>{escape(title)}</h3>" if title else ""}{content}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int] = ()) -> str:
    """text: columns of words, which stand to the left."""

    def cells(row: Sequence[str], tag: str) -> str:
        kinds = (' class="text"' if place in text else "" for place in range(len(row)))
        return "".join(f"<{tag}{kind}>{escape(cell)}</{tag}>" for cell, kind in zip(row, kinds, strict=True))

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{cells(head, 'th')}</tr>{body}</table>"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"
