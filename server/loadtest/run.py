"""Runs a load test: the target is looked at, warmed up, loaded step by step, and looked at again when it is idle."""

import asyncio
import gc
import sys
from contextlib import suppress
from datetime import datetime, timezone
from time import perf_counter

from configs.version import version
from server.loadtest.driving.pacing import Pacer
from server.loadtest.driving.progress import ProgressLine
from server.loadtest.driving.target import Target, TargetError
from server.loadtest.options import Options
from server.loadtest.plans import LoadPlan
from server.loadtest.results.client_load import ClientWatch
from server.loadtest.results.leaks import MIB, Snapshot, judge, verdict
from server.loadtest.results.measures import Record, summarise
from server.loadtest.results.requirements import outcomes
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
        self._began = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._started = perf_counter()
        self._pool = ConnectionPool(options.url, insecure=options.insecure)
        self._client = Client(self._pool, options, started=self._started)
        self._target = Target(options, started=self._started)
        self._progress = ProgressLine(sys.stderr, quiet=options.quiet)
        self._watch = ClientWatch(self._started)
        self._timeline: list[Snapshot] = []
        self._steps: list[StepResult] = []
        self._interrupted = False

    async def run(self, interrupt: asyncio.Event) -> RunResult:
        """The whole of it. `interrupt` ends it early; what was found up to there is the result. Raises TargetError."""
        target = self._target
        listed = await target.model()
        self._client.model = self._options.model or listed
        try:
            await self._warm_up()
            before = await target.settled()
            self._timeline.append(before)
            gc.collect()
            gc.disable()  # while latencies are measured; nothing here makes cycles in numbers
            try:
                await self._run_steps(interrupt)
            finally:
                gc.enable()
            self._pool.close()
            after = await target.settled()
            self._timeline.append(after)
        finally:
            self._pool.close()
            target.close()
        return self._result(before, after)

    async def _warm_up(self) -> None:
        """A few requests before anything is counted. Raises TargetError where all of them fail."""
        n = self._options.warmup
        requests = [self._plans[0].request(index) for index in range(n)]
        records: list[Record] = []
        for start in range(0, n, 4):
            records += await asyncio.gather(*(self._client.send(one, 0.0) for one in requests[start : start + 4]))
        failed = [record.error for record in records if record.error]
        if records and len(failed) == n:
            raise TargetError(f"not one of {n} requests before the start was answered: {failed[0]}")

    async def _run_steps(self, interrupt: asyncio.Event) -> None:
        """All steps one after the other, with everybody who looks on."""
        onlookers = (self._watch.run(), self._progress.run(), self._target.watch(self._timeline))
        tasks = [asyncio.ensure_future(one) for one in onlookers]
        stop = asyncio.ensure_future(interrupt.wait())
        try:
            for number, plan in enumerate(self._plans):
                self._progress.label = f"{plan.label}: " if len(self._plans) > 1 else ""
                stepping = asyncio.ensure_future(self._step(plan, number))
                await asyncio.wait({stepping, stop}, return_when=asyncio.FIRST_COMPLETED)
                stepping.cancel()  # nothing, where it is done
                await stepping
                if self._interrupted:
                    break
        finally:
            for task in (stop, *tasks):
                task.cancel()
            for task in tasks:
                with suppress(asyncio.CancelledError):
                    await task

    async def _step(self, plan: LoadPlan, number: int) -> None:
        """One load; its records are kept also where it is interrupted."""
        records: list[Record] = []

        def on_record(record: Record) -> None:
            records.append(record)
            self._progress.ended(record)

        async def send(index: int, due: float, measured: bool) -> Record:
            self._progress.sent()
            return await self._client.send(plan.request(index), due, step=number, measured=measured)

        now = perf_counter() - self._started
        pacer = Pacer(self._options, send, on_record, started=self._started, now=now)
        try:
            if plan.dues is None:
                await pacer.closed_loop(plan.streams)
            else:
                await pacer.open_loop(plan.dues)
        except asyncio.CancelledError:
            self._interrupted = True
            await pacer.finish(0.0)
        records.sort(key=lambda record: record.sent)
        summary = summarise(records, self._options.slo or {})
        self._steps.append(StepResult(label=plan.label, load=plan.load, summary=summary, records=records))

    def _result(self, before: Snapshot, after: Snapshot) -> RunResult:
        """Everything, judged."""
        options, steps = self._options, self._steps
        findings = judge(before, after, self._timeline, options.memory_slack * MIB)
        media, repeated = media_of([plan.drawn for plan in self._plans], [len(step.records) for step in steps])
        unbounded = options.max_in_flight is None and not options.concurrency
        return RunResult(
            version=version(), began=self._began, target=options.url, model=self._client.model,
            options=options.written(), objectives=options.slo or {}, steps=steps,
            outcomes=[one for step in steps for one in outcomes(options.require or (), step.label, step.summary)],
            findings=findings, leak=verdict(findings),
            client=self._watch.load([one.wait for step in steps for one in step.records] if unbounded else []),
            timeline=self._timeline, media_sent=media, media_repeated=repeated,
            notes=self._notes(media, repeated), interrupted=self._interrupted,
        )  # fmt: skip

    def _notes(self, media: int, repeated: float) -> list[str]:
        """What a reader of the figures should know."""
        found = []
        if self._interrupted:
            found.append("the run was interrupted: figures are of what was over by then")
        if media and repeated > self._options.repeat + 0.05:
            found.append(
                f"{repeated:.0%} of the media had been sent before, more than --repeat asks for: raise --distinct "
                "where the server keeps what it saw"
            )
        answered = [record for step in self._steps for record in step.records if record.answered]
        if any(record.tokens_by_events for record in answered):
            found.append("the server sends no usage: output tokens are counted as events, which may hold several")
        streamed = [record for record in answered if record.output_tokens and record.events]
        tokens, events = sum(one.output_tokens or 0 for one in streamed), sum(one.events for one in streamed)
        if not self._options.no_stream and tokens > 1.1 * events:
            found.append(f"an event holds {tokens / events:.2f} tokens on average: itl is above tpot by as much")
        return found
