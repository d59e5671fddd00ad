"""The steps of a run as plans: how each is called, when its requests are due, and which requests these are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from server.loadtest.options import Options
from server.loadtest.traffic.arrivals import arrivals, read_trace, until
from server.loadtest.traffic.library import MediaLibrary
from server.loadtest.traffic.mixes import SyntheticRequests
from server.loadtest.traffic.request_list import RequestList
from server.loadtest.traffic.requests import SampleRequest

AHEAD = 512  # requests that are drawn for a closed loop whose number nobody knows


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One step before it begins. A closed loop has no `dues`, an open one no `streams`."""

    label: str
    load: float
    drawn: Sequence[SampleRequest]
    dues: Sequence[float] | None = None
    streams: int = 0

    def request(self, index: int) -> SampleRequest:
        """Request number `index`. Beyond those that were drawn they come again, with prompts of their own."""
        request = self.drawn[index % len(self.drawn)]
        return request if index < len(self.drawn) else request.again(index)


def plans_of(options: Options) -> list[LoadPlan]:
    """One for each rate or number of streams. Raises ValueError for a file that cannot be used, OSError."""
    source: RequestList | SyntheticRequests
    if options.requests_file is not None:
        source = RequestList(options.requests_file, options.max_tokens.values[0])
    else:
        source = SyntheticRequests(options, MediaLibrary(options.seed, options.distinct, options.media_dir))
    if options.trace is not None:
        lines = read_trace(options.trace, options.trace_speed)
        lines = until(lines, count=options.requests, seconds=options.seconds)
        drawn = [source.make(index, line) for index, line in enumerate(lines)]
        dues = [line.at for line in lines]
        rate = len(dues) / (dues[-1] or 1.0)
        return [LoadPlan(label=f"trace {options.trace}", load=rate, drawn=drawn, dues=dues)]
    plans = []
    for step, rate in enumerate(options.rate or ()):
        dues = arrivals(options, rate, random.Random(f"arrivals {options.seed} {step}"))
        drawn = [source.make(index) for index in range(max(1, len(dues)))]
        plans.append(LoadPlan(label=f"{rate:g} req/s {options.arrivals}", load=rate, drawn=drawn, dues=dues))
    for streams in options.concurrency or ():
        drawn = [source.make(index) for index in range(options.requests or AHEAD)]
        plans.append(LoadPlan(label=f"{streams} streams", load=float(streams), drawn=drawn, streams=streams))
    return plans
