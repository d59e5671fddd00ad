"""Runs a load test: the target is looked at, warmed up, loaded step by step, and looked at again when it is idle."""

import asyncio
import gc
import sys
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
from server.loadtest.results.leaks import MIB, judge, verdict
from server.loadtest.results.measures import Record, outcomes, summarise
from server.loadtest.results.result import RunResult, StepResult
from server.loadtest.traffic.mixes import media_of
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
        self._watch = ClientWatch(self._started)
        self._result = RunResult(
            version=version(), began=datetime.now(timezone.utc).isoformat(timespec="seconds"), target=options.url,
            options=options.written(), objectives=options.slo or {},
        )  # fmt: skip

    async def run(self, interrupt: asyncio.Event) -> RunResult:
        """The whole of it. `interrupt` ends it early; what was found up to there is the result. Raises TargetError."""
        result, target = self._result, self._target
        listed = await target.model()
        result.model = self._client.model = self._options.model or listed
        try:
            await self._warm_up()
            result.timeline.append(await target.settled())
            gc.collect()
            gc.disable()  # while latencies are measured; nothing here makes cycles in numbers
            try:
                await self._run_steps(interrupt)
            finally:
                gc.enable()
            self._pool.close()
            result.timeline.append(await target.settled())
        finally:
            self._pool.close()
            target.close()
        self._judge()
        return result

    async def _warm_up(self) -> None:
        """A few requests before anything is counted. Raises TargetError where all of them fail."""
        n = self._options.warmup
        requests = self._plans[0].warm_up(n)
        records: list[Record] = []
        for start in range(0, n, 4):
            records += await asyncio.gather(*(self._client.send(one, 0.0) for one in requests[start : start + 4]))
        failed = [record.error for record in records if record.error]
        if records and len(failed) == n:
            raise TargetError(f"not one of {n} requests before the start was answered: {failed[0]}")

    async def _run_steps(self, interrupt: asyncio.Event) -> None:
        """All steps one after the other, with everybody who looks on."""
        async with anyio.create_task_group() as onlookers:
            for look in (self._watch.run, self._progress.run, partial(self._target.watch, self._result.timeline)):
                onlookers.start_soon(look)
            for number, plan in enumerate(self._plans):
                if not interrupt.is_set():
                    self._progress.label = f"{plan.label}: " if len(self._plans) > 1 else ""
                    await self._step(plan, number, interrupt)
            onlookers.cancel_scope.cancel()
        self._result.interrupted = interrupt.is_set()

    async def _step(self, plan: LoadPlan, number: int, interrupt: asyncio.Event) -> None:
        """One load; its records are kept also where it is interrupted."""

        async def send(index: int, due: float, measured: bool) -> Record:
            self._progress.sent()
            record = await self._client.send(plan.request(index), due, step=number, measured=measured)
            self._progress.ended(record)
            return record

        async def stop(pacing: anyio.CancelScope) -> None:
            await interrupt.wait()
            pacing.cancel()

        now = perf_counter() - self._started
        pacer = Pacer(self._options, send, started=self._started, now=now)
        async with anyio.create_task_group() as group:
            group.start_soon(stop, group.cancel_scope)
            await (pacer.closed_loop(plan.streams) if plan.dues is None else pacer.open_loop(plan.dues))
            group.cancel_scope.cancel()
        await pacer.finish(0.0)
        records = sorted(pacer.records, key=lambda record: record.sent)
        summary = summarise(records, self._options.slo or {})
        self._result.steps.append(StepResult(label=plan.label, load=plan.load, summary=summary, records=records))

    def _judge(self) -> None:
        """What was found of server, client and media, into the result."""
        options, result = self._options, self._result
        for step in result.steps:
            result.outcomes += outcomes(options.require or (), step.label, step.summary)
        before, *_, after = result.timeline
        result.findings = judge(before, after, result.timeline, options.memory_slack * MIB)
        result.leak = verdict(result.findings)
        result.hit_rates = hit_rates(before, after)
        unbounded = options.max_in_flight is None and not options.concurrency
        waits = [one.wait for step in result.steps for one in step.records] if unbounded else []
        result.client = self._watch.load(waits)
        drawn, sent = [plan.drawn for plan in self._plans], [len(step.records) for step in result.steps]
        result.media_sent, result.media_repeated = media_of(drawn, sent)
        result.notes = self._notes()

    def _notes(self) -> list[str]:
        """What a reader of the figures should know."""
        result, found = self._result, []
        if result.interrupted:
            found.append("the run was interrupted: figures are of what was over by then")
        if self._options.shared_media is None and result.media_repeated > self._options.repeat + 0.05:
            found.append(
                f"{result.media_repeated:.0%} of the media had been sent before, more than --repeat asks for: raise "
                "--distinct where the server keeps what it saw"
            )
        answered = [record for step in result.steps for record in step.records if record.answered]
        if any(record.tokens_by_events for record in answered):
            found.append("the server sends no usage: output tokens are counted as events, which may hold several")
        streamed = [record for record in answered if record.output_tokens and record.events]
        tokens, events = sum(one.output_tokens or 0 for one in streamed), sum(one.events for one in streamed)
        if not self._options.no_stream and tokens > 1.1 * events:
            found.append(f"an event holds {tokens / events:.2f} tokens on average: itl is above tpot by as much")
        return found
