"""`--find`: a load test that searches the highest load which keeps an objective, within a time that its pilot tells."""

import asyncio
import math
import sys
from dataclasses import replace
from time import perf_counter

import anyio

from server.loadtest.driving.search import WARM, Search, hopeless, repeat_length
from server.loadtest.driving.target import PAGE_SECONDS
from server.loadtest.options import PILOT, Options
from server.loadtest.plans import LoadPlan, RepeatPlans
from server.loadtest.results.capacity import NONE, Forecast, spoken
from server.loadtest.results.measures import Record, from_due
from server.loadtest.results.result import StepResult
from server.loadtest.run import LoadTest

USUAL = {0.03: 50, 1.0: 25}  # repeats of a search, by the share that may be beyond: the mean of simulated ones


class CapacityTest(LoadTest):
    """A run whose steps are the repeats of a search."""

    def __init__(self, options: Options) -> None:
        """Raises ValueError where the address is none, or no requests can be made; OSError."""
        assert options.find is not None
        self._objective = options.find
        self._latency, _, quantile = options.find.figure.partition(".")
        self._allowed = round(1 - float(quantile[1:]) / 100, 9)
        self._repeats = RepeatPlans(options)
        self._drawn: list[LoadPlan] = [self._repeats.one_stream(PILOT, apart=options.warmup)]
        super().__init__(options, self._drawn)
        self._result.objectives = {self._latency: options.find.bound}

    async def _load(self, interrupt: asyncio.Event) -> None:
        """The pilot, and the search until it knows, its time is over or it is interrupted."""
        self._progress.label = "pilot: "
        pilot = await self._step(self._drawn[0], 0, interrupt)
        values = sorted(self.values(pilot))
        if not values:
            return
        median = values[len(values) // 2]
        mean = sum(one.ended - one.sent for one in pilot.records) / len(pilot.records)
        search = Search(self._objective.bound, self._allowed, 2 / max(mean, 1e-6))
        if median > self._objective.bound:
            says = f"one request at a time takes {median:.3g} s in the median"
            if math.isinf(median):
                says = f"one request at a time has no {self._latency}"
            self._result.capacity = replace(search.capacity(self._objective.text), verdict=NONE, says=says)
            return
        forecast = self.forecast(mean)
        deadline = perf_counter() + self._options.find_within
        while (rate := search.next()) is not None and not interrupt.is_set():
            found = await self._repeat(search, rate, interrupt, deadline)
            if found is None:
                break
            search.add(rate, found)
        self._result.capacity = replace(search.capacity(self._objective.text), forecast=forecast)

    def forecast(self, seconds: float) -> Forecast:
        """What the search takes where a request takes so many seconds alone, said on stderr.

        A server that computes several at once is faster than that.
        """
        each, within = repeat_length(self._allowed), self._options.find_within
        usual = next(n for most, n in USUAL.items() if self._allowed <= most)
        requests = usual * math.ceil(each * (1 + WARM))
        most = within + self._options.settle + 2 * PAGE_SECONDS  # behind it the server is looked at
        found = Forecast(requests=requests, seconds=requests * seconds, most_seconds=most)
        print(f"pilot: a request alone takes {seconds:.3g} s. {self._objective.text} needs repeats of {each} requests: "
              f"{found.says}", file=sys.stderr)  # fmt: skip
        if found.seconds > within:
            print(f"that is more than --find-within {spoken(within)}, which ends the search: its answer may be "
                  "`unclear`. A lower percentile needs fewer requests", file=sys.stderr)  # fmt: skip
        return found

    async def _repeat(
        self, search: Search, rate: float, interrupt: asyncio.Event, deadline: float
    ) -> list[float] | None:
        """One repeat of a load: its latencies in the order in which requests were due; None: it was cut off."""
        known = search.loads.get(rate)
        number, each = 1 + (len(known.repeats) if known else 0), repeat_length(self._allowed)
        label = f"{rate:g} req/s {self._options.arrivals}, repeat {number}"
        plan = self._repeats.repeat(rate, math.ceil(WARM * each), each, label)
        self._drawn.append(plan)
        self._progress.label = f"{label}: "
        end, beyond, most = asyncio.Event(), 0, hopeless(self._allowed, each)

        def over(record: Record) -> None:
            nonlocal beyond
            late = record.measured and not record.cancelled and from_due(record, self._latency) > search.bound
            beyond += late
            if beyond >= most:
                end.set()

        async def ending() -> None:
            with anyio.move_on_after(max(0.0, deadline - perf_counter())):
                await interrupt.wait()
            end.set()

        watching = asyncio.ensure_future(ending())
        try:
            step = await self._step(plan, len(self._result.steps), end, over)
        finally:
            watching.cancel()
        return None if end.is_set() and beyond < most else self.values(step)

    def values(self, step: StepResult) -> list[float]:
        """Latencies of a step's measured requests in the order in which they were due; inf of one without."""
        records = sorted(step.records, key=lambda one: one.due)
        return [from_due(one, self._latency) for one in records if one.measured and not one.cancelled]
