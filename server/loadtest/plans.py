"""The steps of a run as plans: how each is called, when its requests are due, and which requests these are."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from server.loadtest.options import Options
from server.loadtest.traffic.arrivals import Arrival, arrivals, begun, read_trace
from server.loadtest.traffic.mixes import RequestList, SyntheticRequests
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
    source = SyntheticRequests(options) if options.requests_file is None else RequestList(options)

    def plan(label: str, load: float, came: list[Arrival], streams: int = 0) -> LoadPlan:
        drawn = [source.make(index, one) for index, one in enumerate(came or [Arrival()])]
        dues = None if streams else [one.at for one in came]
        return LoadPlan(label=label, load=load, drawn=drawn, dues=dues, streams=streams)

    if options.trace is not None:
        came = begun(options, read_trace(options.trace, options.trace_speed))
        return [plan(f"trace {options.trace}", len(came) / (max((one.at for one in came), default=0.0) or 1.0), came)]
    plans = []
    for step, rate in enumerate(options.rate or ()):
        came = arrivals(options, rate, random.Random(f"arrivals {options.seed} {step}"))
        plans.append(plan(f"{rate:g} req/s {options.arrivals}", rate, came))
    for streams in options.concurrency or ():
        came = [Arrival()] * (options.requests or AHEAD)
        plans.append(plan(f"{streams} streams", float(streams), came, streams))
    return plans
