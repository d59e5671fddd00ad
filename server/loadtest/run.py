"""Runs a load test: the target is looked at, warmed up, loaded step by step, and looked at again when it is idle."""

import asyncio
import gc
import math
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from time import perf_counter

import anyio

from configs.version import version
from server.loadtest.driving.pacing import Pacer
from server.loadtest.driving.progress import ProgressLine
from server.loadtest.driving.target import Target, TargetError
from server.loadtest.options import Options
from server.loadtest.plans import LoadPlan
from server.loadtest.results.client_load import ClientWatch
from server.loadtest.results.hit_rates import hit_rates
from server.loadtest.results.leaks import Snapshot, judge, verdict
from server.loadtest.results.measures import Record, outcomes, summarise
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.traffic.mixes import media_of
from server.loadtest.traffic.requests import SampleRequest
from server.loadtest.wire.connection import ConnectionPool
from server.loadtest.wire.exchange import Client


class LoadTest:
    """One run."""

    def __init__(self, options: Options, plans: list[LoadPlan]) -> None:
        """Raises ValueError where the address is none."""
        self._options = options
        self._plans = plans
        self._started = perf_counter()
        self._pool = ConnectionPool(options.url, insecure=options.insecure)
        self._client = Client(self._pool, options, started=self._started)
        self._target = Target(options, started=self._started)
        self._progress = ProgressLine(sys.stderr, quiet=options.quiet)
        self._watch = ClientWatch()
        self._looked = False  # at the server before and after
        self._result = RunResult(
            version=version(), began=datetime.now(timezone.utc).isoformat(timespec="seconds"), target=options.url,
            options=options.written(), objectives=options.slo or {}, most_errors=options.most_errors,
        )  # fmt: skip

    async def run(self, interrupt: asyncio.Event) -> RunResult:
        """The whole of it. `interrupt` ends it early; what was found up to there is the result. Raises TargetError."""
        result, target = self._result, self._target
        try:
            async with left_at(interrupt):
                listed = await target.model()
                result.model = self._client.model = self._options.model or listed
                await self._warm_up()
                result.timeline.append(await target.settled())
            gc.collect()
            gc.disable()  # while latencies are measured; nothing here makes cycles in numbers
            try:
                await self._run_steps(interrupt)
            finally:
                gc.enable()
            self._pool.close()
            async with left_at(asyncio.Event() if interrupt.is_set() else interrupt):
                if result.steps:
                    result.vanished = await target.vanished()
                    result.timeline.append(await target.settled())
                    self._looked = True
        finally:
            self._pool.close()
        result.interrupted = interrupt.is_set()
        self._judge()
        return result

    async def _warm_up(self) -> None:
        """A few requests before anything is counted. Raises TargetError where all of them fail."""
        n = self._options.warmup
        requests = self._plans[0].warm_up(n)
        records: list[Record] = []

        async def send(request: SampleRequest) -> None:
            records.append(await self._client.send(request, 0.0))

        for start in range(0, n, 4):
            async with anyio.create_task_group() as group:
                for request in requests[start : start + 4]:
                    group.start_soon(send, request)
        failed = [record.error for record in records if record.error]
        if records and len(failed) == n:
            raise TargetError(f"not one of {n} requests before the start was answered: {failed[0]}", answers=True)

    async def _run_steps(self, interrupt: asyncio.Event) -> None:
        """All steps one after the other, with everybody who looks on."""
        async with anyio.create_task_group() as onlookers:
            for look in (self._watch.run, self._progress.run, partial(self._target.watch, self._result.timeline)):
                onlookers.start_soon(look)
            await self._load(interrupt)
            onlookers.cancel_scope.cancel()

    async def _load(self, interrupt: asyncio.Event) -> None:
        """What is measured."""
        for number, plan in enumerate(self._plans):
            if not interrupt.is_set():
                self._progress.label = f"{plan.label}: " if len(self._plans) > 1 else ""
                await self._step(plan, number, interrupt)

    async def _step(
        self, plan: LoadPlan, number: int, end: asyncio.Event, over: Callable[[Record], None] | None = None
    ) -> StepResult:
        """One load; its records are kept also where `end` comes before it is over. over: called with each request."""

        async def send(index: int, due: float, measured: bool, room: asyncio.Semaphore | None) -> Record:
            self._progress.sent()
            record = await self._client.send(plan.request(index), due, step=number, measured=measured, room=room)
            self._progress.ended(record)
            if over is not None:
                over(record)
            return record

        now = perf_counter() - self._started
        pacer = Pacer(replace(self._options, ramp=plan.ramp), send, started=self._started, now=now)
        async with left_at(end):
            await (pacer.closed_loop(plan.streams) if plan.dues is None else pacer.open_loop(plan.dues))
        cut = perf_counter() - self._started if end.is_set() else math.inf
        await pacer.finish(0.0)
        records = sorted(pacer.records, key=lambda record: record.sent)
        for record in records:
            if record.ended >= cut:  # that it is not answered is ours
                record.cancelled, record.error = True, None
        closing = min(now + plan.dues[-1] + 1 / plan.load, cut) if plan.dues else None
        window = None if closing is None else (now + plan.ramp, closing)
        summary = summarise(records, self._options.slo or {}, window)
        step = StepResult(label=plan.label, load=plan.load, summary=summary, records=records)
        self._result.steps.append(step)
        return step

    def _judge(self) -> None:
        """What was found of server, client and media, into the result."""
        options, result = self._options, self._result
        for step in result.steps:
            result.outcomes += outcomes(options.require or (), step.label, step.summary, step.records)
        looks = result.timeline if self._looked else [Snapshot()]
        last = result.steps[-1].records if result.steps else []
        result.findings = judge(looks, sorted(one.ended for one in last if one.measured))
        result.leak = verdict(result.findings)
        result.hit_rates = hit_rates(looks[0], looks[-1])
        unbounded = options.max_in_flight is None and not options.concurrency
        waits = [one.wait for step in result.steps for one in step.records] if unbounded else []
        result.client = self._watch.load(waits)
        drawn, sent = [plan.drawn for plan in self._plans], [len(step.records) for step in result.steps]
        result.media_sent, result.media_repeated = media_of(drawn, sent)
        result.connections = self._pool.opened
        result.reconnects = {when: n for when, n in self._pool.closed.items() if n}
        result.notes = self._notes()

    def _notes(self) -> list[str]:
        """What a reader of the figures should know."""
        result, found = self._result, []
        if result.interrupted:
            found.append("the run was interrupted: figures are of what was over by then")
        hung = [one for step in result.steps for one in step.records if one.error in ("timeout", "unfinished")]
        if hung:
            named = ", ".join(f"{one.index} ({one.bucket}, {one.ended - one.sent:.1f} s)" for one in hung[:5])
            found.append(f"{len(hung)} requests had no end in time and are in no rate: number {named}")
        if self._options.shared_media is None and result.media_repeated > self._options.repeat + 0.05:
            found.append(
                f"{result.media_repeated:.0%} of the media had been sent before, more than --repeat asks for: raise "
                "--distinct where the server keeps what it saw"
            )
        if any(one.tokens_by_events for step in result.steps for one in step.records):
            found.append("the server sends no usage: output tokens are counted as events, which may hold several")
        return found


@asynccontextmanager
async def left_at(interrupt: asyncio.Event) -> AsyncIterator[None]:
    """What stands in it is left when the event comes."""
    with anyio.CancelScope() as scope:

        async def leave() -> None:
            await interrupt.wait()
            scope.cancel()

        leaving = asyncio.ensure_future(leave())
        try:
            yield
        finally:
            leaving.cancel()
