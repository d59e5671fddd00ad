"""The steps of a run as plans: how each is called, when its requests are due, and which requests these are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from server.loadtest.options import Options
from server.loadtest.traffic.arrivals import Rise, TraceLine, arrivals, read_trace, until
from server.loadtest.traffic.asks import Ask
from server.loadtest.traffic.library import Library
from server.loadtest.traffic.mixes import Drawing
from server.loadtest.traffic.request_list import RequestList

AHEAD = 512  # requests that are drawn for a closed loop whose number nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One step before it begins. A closed loop has no `dues`."""

    label: str
    load: float
    drawn: Sequence[Ask]
    dues: Sequence[float] | None = None
    streams: int = 0
    count: int | None = None

    def ask(self, index: int) -> Ask:
        """Request number `index`. Beyond those that were drawn they come again, with prompts of their own."""
        ask = self.drawn[index % len(self.drawn)]
        return ask if index < len(self.drawn) else ask.again(index)


class Requests(Protocol):
    """Where the requests of a run come from."""

    def make(self, index: int, line: TraceLine | None = None) -> Ask:
        """Request number `index`; asked for in order."""


def requests_of(options: Options) -> Requests:
    """A list, or what the mix draws. Raises ListError, NoMedia, OSError."""
    if options.requests_file is not None:
        return RequestList(options.requests_file, options.mix.max_tokens.values[0])
    return Drawing(options.mix, Library(options.seed, options.distinct, options.media_dir), options.seed)


def plans_of(options: Options) -> list[Plan]:
    """One for each rate or number of streams. Raises TraceError, ListError, NoMedia, OSError."""
    drawing = requests_of(options)
    if options.trace is not None:
        lines = until(read_trace(options.trace, options.trace_speed), count=options.count, seconds=options.seconds)
        return [trace_plan(options, lines, drawing)]
    plans = [open_plan(options, rate, number, drawing) for number, rate in enumerate(options.rates)]
    return plans + [closed_plan(options, streams, drawing) for streams in options.streams]


def trace_plan(options: Options, lines: list[TraceLine], drawing: Requests) -> Plan:
    """A request for each line, with the line's lengths where it has them."""
    drawn = [drawing.make(index, line) for index, line in enumerate(lines)]
    dues = [line.at for line in lines]
    rate = len(dues) / dues[-1] if dues[-1] > 0 else float(len(dues))
    return Plan(label=f"trace {options.trace}", load=rate, drawn=drawn, dues=dues)


def open_plan(options: Options, rate: float, step: int, drawing: Requests) -> Plan:
    """Requests at a rate; with a ramp they begin with none."""
    rise = Rise(start=0.0 if options.ramp else rate, end=rate, seconds=options.ramp)
    rng = random.Random(f"arrivals {options.seed} {step}")
    dues = arrivals(
        options.arrivals, rise, rng, burstiness=options.burstiness, count=options.count, seconds=options.seconds
    )
    drawn = [drawing.make(index) for index in range(max(1, len(dues)))]
    return Plan(label=f"{rate:g} req/s {options.arrivals}", load=rate, drawn=drawn, dues=dues)


def closed_plan(options: Options, streams: int, drawing: Requests) -> Plan:
    """So many streams."""
    n = options.count if options.count is not None else AHEAD
    drawn = [drawing.make(index) for index in range(n)]
    return Plan(label=f"{streams} streams", load=float(streams), drawn=drawn, streams=streams, count=options.count)
