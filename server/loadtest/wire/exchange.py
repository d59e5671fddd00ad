"""One request from its body to its record: sent, timed, left early where that is wanted, its answer checked."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

from server.loadtest.results.record import Record
from server.loadtest.traffic.asks import APIS, Ask, Form
from server.loadtest.wire.answers import Reading, Unreadable
from server.loadtest.wire.connection import Connection, ConnectionFailed, Pool, request_bytes
from server.loadtest.wire.sse import Events

MAX_ANSWER = 200  # characters that are kept of an answer that was checked
TIMINGS = "X-Pixelferry-Timings"  # asks our server for the seconds of its stages; no other looks at it


@dataclass(slots=True)
class Answer:
    """Takes what comes of one answer."""

    reading: Reading = field(default_factory=Reading)
    status: int = 0
    request_id: str | None = None
    unreadable: str | None = None
    _events: Events | None = None
    _body: list[bytes] = field(default_factory=list)
    _at: float = 0.0

    def head(self, status: int, headers: dict[str, str], at: float) -> None:
        self.status, self.request_id = status, headers.get("x-request-id", "")[:128] or None
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._events = Events()

    def body(self, data: bytes, at: float) -> None:
        self._at = at
        if self._events is None:
            self._body.append(data)
            return
        for event in self._events.feed(data):
            self._take(event)

    def end(self) -> None:
        """No more comes."""
        if self._events is None:
            self._take(b"".join(self._body))
        elif (rest := self._events.rest()) is not None:
            self._take(rest)

    def _take(self, data: bytes) -> None:
        try:
            self.reading.take(data, self._at)
        except Unreadable as error:
            self.unreadable = self.unreadable or str(error)

    @property
    def error(self) -> str | None:
        """Why this is no answer."""
        if self.status != 200:
            return f"{self.status} {self.reading.error or ''}".strip()
        if self.reading.error is not None:
            return f"event: {self.reading.error}"
        if self.unreadable is not None:
            return self.unreadable
        if self.reading.last is None:
            return "empty answer"
        return None if self.reading.done or self.reading.finish is not None else "cut off"


class Client:
    """Sends requests to one target."""

    def __init__(
        self, pool: Pool, form: Form, *, started: float, timeout: float = 600.0, headers: Mapping[str, str] = {}
    ) -> None:
        """started: zero of all times in records, by perf_counter; timeout: seconds that one request may take."""
        self._pool = pool
        self._form = form
        self._timeout = timeout
        self._headers = {TIMINGS: "1", **headers}
        self.started = started

    async def send(self, ask: Ask, due: float, *, step: int = 0, measured: bool = True) -> Record:
        """Send one and wait for its end. `due` is in seconds of the run. Never raises but when it is cancelled."""
        body = self._form.body(ask)
        request = request_bytes(self._pool.address, "POST", APIS[self._form.api], body, self._headers)
        record = Record(
            index=ask.index, step=step, kind=ask.kind, bucket=ask.bucket, measured=measured, due=due,
            sent=perf_counter() - self.started, sent_bytes=len(body),
        )  # fmt: skip
        answer = Answer()
        try:
            await self._wait(request, answer, ask, record)
            answer.end()
            record.error = None if record.cancelled else answer.error
        except ConnectionFailed as failure:
            record.error = record.error or (None if record.cancelled else str(failure))
        except asyncio.CancelledError:
            record.error = "unfinished"
        record.ended = perf_counter() - self.started
        self._fill(record, answer, ask)
        return record

    async def _wait(self, request: bytes, answer: Answer, ask: Ask, record: Record) -> None:
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
            timers.append(loop.call_later(self._timeout, give_up, False))
            if ask.cancel_after is not None:
                timers.append(loop.call_later(ask.cancel_after, give_up, True))

        try:
            await self._pool.exchange(request, answer, holding)
        finally:
            for timer in timers:
                timer.cancel()

    def _fill(self, record: Record, answer: Answer, ask: Ask) -> None:
        """What the answer says, into the record."""
        reading, usage = answer.reading, answer.reading.usage
        record.status, record.request_id, record.finish = answer.status, answer.request_id, reading.finish
        record.first = None if reading.first is None else reading.first - self.started
        record.last = None if reading.last is None else reading.last - self.started
        record.events, record.gaps = reading.events, reading.gaps
        if usage is not None:
            record.prompt_tokens, record.output_tokens = usage.prompt_tokens, usage.completion_tokens
            record.stages = usage.timings or {}
        if record.output_tokens is None and reading.events:
            record.output_tokens, record.tokens_by_events = reading.events, True
        if not self._form.stream:
            record.first, record.gaps = None, []  # one piece has no first token that could be seen
        if ask.expect is not None and record.answered:
            record.answer = "".join(reading.texts)[:MAX_ANSWER]
            record.correct = normal(record.answer) == normal(ask.expect)


def normal(text: str) -> str:
    """Small letters, without blanks at the ends and a full stop."""
    return text.strip().lower().removesuffix(".")
