"""The steps of a run as plans: which requests each has, and when they are due, by a process, a trace or streams."""

import csv
import json
import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, count, islice, takewhile
from pathlib import Path

from server.loadtest.options import Options
from server.loadtest.traffic.mixes import RequestList, SyntheticRequests
from server.loadtest.traffic.requests import SampleRequest

AHEAD = 512  # requests that are drawn for a closed loop whose number nobody knows


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a request is due, and the lengths of its prompt and its answer where a trace has them."""

    at: float = 0.0  # seconds
    prompt_words: int | None = None
    max_tokens: int | None = None


def time_of(expected: float, rate: float, ramp: float) -> float:
    """The second at which `expected` arrivals are expected where the rate rises from 0 within `ramp` seconds.

    The expected number of arrivals up to a second t is the area below the line of the rate. Turned round, it gives
    the time at which so many are expected: so every process of rate 1 becomes one of this rate, its burstiness kept.
    """
    during = rate / 2 * ramp
    if expected >= during:
        return ramp + (expected - during) / rate
    return math.sqrt(2 * expected * ramp / rate)


def unit_arrivals(process: str, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Times of a process with one arrival a second, for ever.

    burstiness: of `gamma`, the square of the intervals' coefficient of variation (vLLM's is its inverse, the shape);
    1 is Poisson, more comes in clumps.
    """
    if process == "constant":
        return map(float, count())
    gamma = partial(rng.gammavariate, 1 / burstiness, burstiness)
    interval = partial(rng.expovariate, 1.0) if process == "poisson" else gamma
    return accumulate(interval() for _ in count())


def arrivals(options: Options, rate: float, rng: random.Random) -> list[Arrival]:
    """Of the process that was asked for, in order."""
    unit = unit_arrivals(options.arrivals, options.burstiness, rng)
    return begun(options, (Arrival(time_of(expected, rate, options.ramp)) for expected in unit))


def begun(options: Options, came: Iterable[Arrival]) -> list[Arrival]:
    """The beginning of them: as many as the options count, and none when their seconds are over."""
    end = math.inf if options.seconds is None else options.seconds
    return list(takewhile(lambda one: one.at < end, islice(came, options.requests)))


def read_trace(path: Path, speed: float = 1.0) -> list[Arrival]:
    """The requests of a trace, the first at 0, replayed `speed` times as fast. Raises OSError, and ValueError, which
    names the file.

    A line is JSON with `timestamp` in milliseconds (Mooncake's form, with `input_length` and `output_length`) or `at`
    in seconds, or it is CSV: a number of seconds alone, or with the header `at,input_length,output_length`.
    """
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    found: list[Arrival] = []
    try:
        if lines and lines[0].lstrip()[0] == "{":
            rows = [json.loads(line) for line in lines]
        else:
            header = lines and any(letter.isalpha() for letter in lines[0].replace("e", ""))
            rows = [*csv.DictReader(lines, None if header else ["at", "input_length", "output_length"])]
        for row in rows:
            at = float(row["at"]) if "at" in row else float(row["timestamp"]) / 1000
            words, tokens = row.get("input_length"), row.get("output_length")
            found.append(Arrival(at / speed, int(words) if words else None, int(tokens) if tokens else None))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path}: request {len(found) + 1}: no usable `at` or `timestamp` ({error!r})") from None
    if not found:
        raise ValueError(f"{path}: holds no request")
    found.sort(key=lambda one: one.at)
    return [replace(one, at=one.at - found[0].at) for one in found]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """One step before it begins. A closed loop has no `dues`, an open one no `streams`."""

    label: str
    load: float
    drawn: Sequence[SampleRequest]
    dues: Sequence[float] | None = None  # not empty
    streams: int = 0
    ramp: float = 0.0  # seconds; what is due earlier is not measured
    apart: Sequence[SampleRequest] = ()  # for the warm-up, where the step may send none of the same media

    def warm_up(self, n: int) -> Sequence[SampleRequest]:
        """What is sent before the clock starts: the first `n`, unless there are some for that."""
        return self.apart or [self.request(index) for index in range(n)]

    def request(self, index: int) -> SampleRequest:
        """Request number `index`. Beyond those that were drawn they come again, with prompts of their own."""
        request = self.drawn[index % len(self.drawn)]
        return request if index < len(self.drawn) else request.again(index)


def source_of(options: Options) -> SyntheticRequests | RequestList:
    """Where requests come from. Raises ValueError for a file that cannot be used, OSError."""
    return SyntheticRequests(options) if options.requests_file is None else RequestList(options)


class RepeatPlans:
    """The plans of a search, whose loads come one after the other: no request, and no arrival, comes twice."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError for a file that cannot be used, OSError."""
        self._options = options
        self._source = source_of(options)
        self._made = self._repeats = 0

    def one_stream(self, requests: int, apart: int) -> LoadPlan:
        """The pilot: one request after the other. apart: requests of the warm-up in front of it."""
        warm_up = self._draw(apart)
        return LoadPlan(label="pilot, 1 stream", load=0.0, drawn=self._draw(requests), streams=1, apart=warm_up)

    def repeat(self, rate: float, unmeasured: int, requests: int, label: str) -> LoadPlan:
        """So many requests a second, of which the first are not measured. Raises ValueError as `make` does."""
        self._repeats += 1
        rng = random.Random(f"repeat {self._options.seed} {self._repeats}")
        unit = unit_arrivals(self._options.arrivals, self._options.burstiness, rng)
        dues = [expected / rate for expected in islice(unit, unmeasured + requests)]
        return LoadPlan(label=label, load=rate, drawn=self._draw(len(dues)), dues=dues, ramp=dues[unmeasured])

    def _draw(self, n: int) -> list[SampleRequest]:
        first, self._made = self._made, self._made + n
        return [self._source.make(index) for index in range(first, first + n)]


def plans_of(options: Options) -> list[LoadPlan]:
    """One for each rate or number of streams. Raises ValueError for a file that cannot be used, OSError."""
    source = source_of(options)
    apart = [source.make(index) for index in range(options.warmup)] if options.unique_media else []

    def plan(label: str, load: float, came: list[Arrival], streams: int = 0) -> LoadPlan:
        within = all(one.at < options.ramp for one in came)
        if streams and options.ramp:  # the first request of each stream is within
            within = (options.requests or math.inf) <= streams or (options.seconds or math.inf) <= options.ramp
        if within:
            raise ValueError(f"{label}: no request would be measured: none is due behind --ramp {options.ramp:g}s")
        drawn = [source.make(index, one.prompt_words, one.max_tokens) for index, one in enumerate(came or [Arrival()])]
        dues = None if streams else [one.at for one in came]
        return LoadPlan(label=label, load=load, drawn=drawn, dues=dues, streams=streams, ramp=options.ramp, apart=apart)

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
