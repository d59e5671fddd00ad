"""Runs a load test: the target is looked at, warmed up, loaded step by step, and looked at again when it is idle."""

import asyncio
import gc
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from time import perf_counter

from configs.version import version
from server.loadtest.driving.own_watch import OwnWatch
from server.loadtest.driving.pacing import Limits, Tasks, closed_loop, open_loop
from server.loadtest.driving.progress import Progress
from server.loadtest.driving.target import MOST_PAGE, Target, TargetError
from server.loadtest.options import Options
from server.loadtest.results.client_load import client_load
from server.loadtest.results.leaks import Snapshot, judge, verdict
from server.loadtest.results.measures import summarise
from server.loadtest.results.record import Record
from server.loadtest.results.requirements import outcomes
from server.loadtest.results.result import Result, Step
from server.loadtest.steps import Plan
from server.loadtest.traffic.asks import Form
from server.loadtest.traffic.mixes import repeats_of
from server.loadtest.wire.connection import Pool, address_of
from server.loadtest.wire.exchange import Client


@dataclass(slots=True)
class Run:
    """One run while it goes on."""

    options: Options
    target: Target
    pool: Pool
    client: Client
    model: str | None
    started: float
    progress: Progress
    own: OwnWatch
    timeline: list[Snapshot] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    began: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    interrupted: bool = False

    async def warm_up(self, plan: Plan) -> None:
        """A few requests before anything is counted. Raises TargetError where all of them fail."""
        n = self.options.warmup
        asks = [plan.ask(index) for index in range(n)]
        records = []
        for start in range(0, n, 4):
            records += await asyncio.gather(*(self.client.send(ask, 0.0) for ask in asks[start : start + 4]))
        failed = [record.error for record in records if record.error]
        if records and len(failed) == n:
            raise TargetError(f"not one of {n} requests before the start was answered: {failed[0]}")

    async def step(self, plan: Plan, number: int) -> None:
        """One load; its records are kept also where it is interrupted."""
        records: list[Record] = []
        now = perf_counter() - self.started

        def on_record(record: Record) -> None:
            records.append(record)
            self.progress.ended(record)

        async def send(index: int, due: float, measured: bool) -> Record:
            self.progress.sent()
            return await self.client.send(plan.ask(index), due, step=number, measured=measured)

        options = self.options
        limits = Limits(count=plan.count, seconds=options.seconds, grace=options.grace, ramp=options.ramp)
        tasks = Tasks(on_record)
        try:
            if plan.dues is None:
                await closed_loop(plan.streams, send, tasks, limits, started=self.started, now=now)
            else:
                cap = options.max_in_flight
                await open_loop(plan.dues, send, tasks, limits, started=self.started, now=now, cap=cap)
        except asyncio.CancelledError:
            self.interrupted = True
            await tasks.finish(0.0)
        records.sort(key=lambda record: record.sent)
        self.steps.append(
            Step(label=plan.label, load=plan.load, summary=summarise(records, options.objectives), records=records)
        )


async def run_load(options: Options, plans: list[Plan], interrupt: asyncio.Event) -> Result:
    """The whole run. `interrupt` ends it early; what was found up to there is the result. Raises TargetError."""
    pool = Pool(address_of(options.url), tls_of(options))
    headers = {"Authorization": f"Bearer {options.key}"} if options.key else {}
    watching = Pool(pool.address, tls_of(options), most_body=MOST_PAGE)
    target = Target(watching, headers=headers, metrics_path=options.metrics, shm_root=options.shm_root)
    model = await target.model()
    model = options.model or model
    form = Form(
        api=options.api, model=model, temperature=options.temperature, ignore_eos=options.ignore_eos,
        stream=options.stream, usage=options.usage, extra=options.extra,
    )  # fmt: skip
    started = perf_counter()
    client = Client(pool, form, started=started, timeout=options.timeout, headers=headers)
    progress = Progress(sys.stderr, quiet=options.quiet)
    run = Run(options, target, pool, client, model, started, progress, OwnWatch(started))
    try:
        await run.warm_up(plans[0])
        before = await target.settled(started, options.settle)
        run.timeline.append(before)
        with no_collections():
            await steps_of(run, plans, interrupt)
        pool.close()
        after = await target.settled(started, options.settle)
        run.timeline.append(after)
    finally:
        pool.close()
        watching.close()
    return result_of(run, plans, before, after)


async def steps_of(run: Run, plans: list[Plan], interrupt: asyncio.Event) -> None:
    """All steps one after the other, with everybody who looks on."""
    watchers = [
        asyncio.ensure_future(run.own.run()),
        asyncio.ensure_future(run.progress.run()),
        asyncio.ensure_future(run.target.watch(run.started, run.options.sample, run.timeline)),
    ]
    stop = asyncio.ensure_future(interrupt.wait())
    try:
        for number, plan in enumerate(plans):
            run.progress.label = f"{plan.label}: " if len(plans) > 1 else ""
            stepping = asyncio.ensure_future(run.step(plan, number))
            await asyncio.wait({stepping, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not stepping.done():
                stepping.cancel()
            await stepping
            if run.interrupted:
                break
    finally:
        for task in (stop, *watchers):
            task.cancel()
        for task in watchers:
            with suppress(asyncio.CancelledError):
                await task


def result_of(run: Run, plans: list[Plan], before: Snapshot, after: Snapshot) -> Result:
    """Everything, judged."""
    options = run.options
    findings = judge(before, after, run.timeline, options.memory_slack)
    records = [record for step in run.steps for record in step.records]
    unbounded = options.max_in_flight is None and not options.streams
    samples = run.own.samples
    repeats = repeats_of([plan.drawn for plan in plans], [len(step.records) for step in run.steps])
    return Result(
        version=version(), began=run.began, target=options.url,
        model=run.model, options=options.given, objectives=options.objectives, steps=run.steps,
        outcomes=[one for step in run.steps for one in outcomes(options.requirements, step.label, step.summary)],
        findings=findings, leak=verdict(findings),
        client=client_load(samples, run.own.lags, [record.wait for record in records] if unbounded else []),
        timeline=run.timeline, media_sent=repeats.media, media_repeated=repeats.share,
        notes=notes_of(run, repeats.media, repeats.share), interrupted=run.interrupted,
    )  # fmt: skip


def notes_of(run: Run, media: int, repeated: float) -> list[str]:
    """What a reader of the figures should know."""
    options, found = run.options, []
    if run.interrupted:
        found.append("the run was interrupted: figures are of what was over by then")
    if media and repeated > options.mix.repeated + 0.05:
        found.append(
            f"{repeated:.0%} of the media had been sent before, more than --repeat asks for: raise --distinct where "
            "the server keeps what it saw"
        )
    records = [record for step in run.steps for record in step.records]
    if any(record.tokens_by_events and record.answered for record in records):
        found.append("the server sends no usage: output tokens are counted as events, which may hold several")
    several = [record for record in records if record.answered and record.output_tokens and record.events]
    tokens, events = sum(one.output_tokens or 0 for one in several), sum(one.events for one in several)
    if options.stream and several and tokens > 1.1 * events:
        found.append(f"an event holds {tokens / events:.2f} tokens on average: itl is above tpot by as much")
    return found


@contextmanager
def no_collections() -> Iterator[None]:
    """No garbage collection while latencies are measured; nothing here makes cycles in numbers."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def tls_of(options: Options) -> ssl.SSLContext | None:
    """None: the machine's own certificates count."""
    if not options.insecure:
        return None
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
