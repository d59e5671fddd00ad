"""One request from its body to its record: sent, timed, left early where that is wanted, its answer checked."""

import asyncio
from time import perf_counter

from server.loadtest.options import APIS, Options
from server.loadtest.results.measures import Record
from server.loadtest.traffic.requests import SampleRequest, body_of
from server.loadtest.wire.answers import AnswerReader
from server.loadtest.wire.connection import Connection, ConnectionFailed, ConnectionPool

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
        body = body_of(request, self._options, self.model)
        headers = {TIMINGS: "1", **self._options.headers()}
        message = self._pool.request("POST", APIS[self._options.api], headers, body)
        record = Record(
            index=request.index, step=step, kind=request.kind, bucket=request.bucket, measured=measured, due=due,
            sent=perf_counter() - self._started, sent_bytes=len(body),
        )  # fmt: skip
        answer = AnswerReader(record, self._started, streamed=not self._options.no_stream)
        try:
            await self._wait(message, answer, request, record)
            error = answer.end()
            record.error = None if record.cancelled else error
        except ConnectionFailed as failure:
            record.error = record.error or (None if record.cancelled else str(failure))
        except asyncio.CancelledError:
            record.error = "unfinished"
        record.ended = perf_counter() - self._started
        if record.output_tokens is None and record.events:
            record.output_tokens, record.tokens_by_events = record.events, True
        if request.expect is not None and record.answered:
            answer.check(request.expect)
        return record

    async def _wait(self, message: bytes, answer: AnswerReader, request: SampleRequest, record: Record) -> None:
        """Until the answer is whole, or its time is over."""
        loop = asyncio.get_running_loop()
        timers: list[asyncio.TimerHandle] = []

        def holding(connection: Connection) -> None:
            def give_up(cancelled: bool) -> None:
                record.cancelled = cancelled
                record.error = None if cancelled else "timeout"
                connection.abort()

            while timers:
                timers.pop().cancel()
            timers.append(loop.call_later(self._options.timeout, give_up, False))
            if request.cancel_after is not None:
                timers.append(loop.call_later(request.cancel_after, give_up, True))

        try:
            await self._pool.exchange(message, answer, holding)
        finally:
            for timer in timers:
                timer.cancel()
