"""One request from its body to its record: sent, timed, left early where that is wanted, its answer checked."""

import asyncio
import math
from time import perf_counter

import anyio

from server.loadtest.options import APIS, Options
from server.loadtest.results.measures import Record
from server.loadtest.traffic.requests import SampleRequest, body_of
from server.loadtest.wire.answers import AnswerReader
from server.loadtest.wire.connection import ConnectionFailed, ConnectionPool

TIMINGS = "X-Pixelferry-Timings"  # asks our server for the seconds of its stages; no other looks at it


class Client:
    """Sends requests to one target."""

    def __init__(self, pool: ConnectionPool, options: Options, *, started: float, model: str | None = None) -> None:
        """started: zero of all times in records, by perf_counter."""
        self._pool = pool
        self._options = options
        self._started = started
        self.model = model

    async def send(self, request: SampleRequest, due: float, *, step: int = 0, measured: bool = True) -> Record:
        """Send one and wait for its end. `due` is in seconds of the run. Never raises but when it is cancelled."""
        options = self._options
        body = body_of(request, options, self.model)
        message = self._pool.request("POST", APIS[options.api], {TIMINGS: "1", **options.headers()}, body)
        record = Record(
            index=request.index, step=step, kind=request.kind, bucket=request.bucket, measured=measured, due=due,
            sent=perf_counter() - self._started, sent_bytes=len(body),
        )  # fmt: skip
        answer = AnswerReader(record, self._started, streamed=not options.no_stream)
        leave = math.inf if request.cancel_after is None else request.cancel_after
        try:
            with anyio.move_on_after(min(options.timeout, leave)) as limit:
                await self._pool.exchange(message, answer)
            record.cancelled = limit.cancelled_caught and leave < options.timeout
            if not record.cancelled:
                record.error = "timeout" if limit.cancelled_caught else answer.end()
        except ConnectionFailed as failure:
            record.error = str(failure)
        except asyncio.CancelledError:
            record.error = "unfinished"
        record.ended = perf_counter() - self._started
        if record.output_tokens is None and record.events:
            record.output_tokens, record.tokens_by_events = record.events, True
        if request.expect is not None and record.answered:
            answer.check(request.expect)
        return record
