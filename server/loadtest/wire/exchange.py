"""One request from its body to its record: sent, timed, left early where that is wanted, its answer checked."""

import asyncio
import math
from contextlib import nullcontext
from time import perf_counter
from typing import Annotated, Any

import anyio
import msgspec
from msgspec import Meta

from server.loadtest.options import APIS, Options
from server.loadtest.results.measures import Record
from server.loadtest.traffic.requests import SampleRequest, body_of
from server.loadtest.wire.connection import ConnectionFailed, ConnectionPool, Response

TIMINGS = "X-Pixelferry-Timings"  # asks our server for the seconds of its stages; no other looks at it
DONE = b"[DONE]"
MAX_ANSWER = 200  # characters that are kept of an answer that was checked
Seconds = Annotated[float, Meta(ge=0, le=1e9)]  # what a server may say: sums of squares stay far from their end
Word = Annotated[str, Meta(max_length=64)]
Tokens = Annotated[int, Meta(ge=0, le=10**9)]
Stages = Annotated[dict[Word, Seconds], Meta(max_length=256)]


class Events:
    """Collects bytes; gives the data of each event that they complete (the standard's rules, for UTF-8).

    Names, ids, retries and comments are left out.
    """

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # of a line that has not ended; joined once, however many pieces it came in
        self._data: list[bytes] = []
        self._after_cr = False

    def feed(self, data: bytes) -> list[bytes]:
        """The data of each event that ends in these bytes; events without data are none."""
        if self._after_cr and data[:1] == b"\n":
            data = data[1:]
        self._after_cr = data[-1:] == b"\r" if data else self._after_cr
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._rest.append(data)
        if b"\n" not in data:
            return []
        lines = b"".join(self._rest).split(b"\n")
        self._rest = [lines.pop()]
        found: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    found.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                value = line[5:]
                self._data.append(value[1:] if value.startswith(b" ") else value)
        return found

    def rest(self) -> bytes | None:
        """Data of a last event without the blank line behind it, which some servers leave out; None: there is none."""
        found = self.feed(b"\n\n") if any(self._rest) or self._data else []
        return found[0] if found else None


class ChoiceDelta(msgspec.Struct):
    """Of a chunk, or the message of an answer in one piece."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[Any] | None = None


class Choice(msgspec.Struct):
    delta: ChoiceDelta | None = None
    message: ChoiceDelta | None = None
    text: str | None = None
    finish_reason: Word | None = None

    def said(self) -> tuple[str, bool]:
        """Text of the answer, and whether anything is shown: thoughts and calls of tools are, too."""
        delta = self.delta or self.message
        if delta is None:
            return self.text or "", bool(self.text)
        shown = delta.content or delta.reasoning_content or delta.reasoning or delta.tool_calls
        return delta.content or "", bool(shown)


class Usage(msgspec.Struct):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    timings: Stages | None = None


class Body(msgspec.Struct):
    """Both OpenAI's chunk and the native event; what a form does not have stays empty."""

    choices: list[Choice] | None = None
    text: str | None = None
    finish_reason: Word | None = None
    usage: Usage | None = None
    error: Any = None


_read = msgspec.json.Decoder(Body, strict=False).decode


class AnswerReader(Response):
    """Reads an answer as it comes, into the record of its request."""

    def __init__(self, record: Record, started: float, *, streamed: bool = True) -> None:
        """started: zero of the record's times; streamed: else one piece, which has no first token to be seen."""
        super().__init__()
        self._record = record
        self._started = started
        self._streamed = streamed
        self._events: Events | None = None
        self._at = self._latest = 0.0  # when bytes came, and content
        self._texts: list[str] = []
        self._error: str | None = None  # the server's word
        self._unreadable: str | None = None
        self._done = False

    def head(self, status: int, headers: dict[str, str]) -> None:
        self._record.status = status
        self._record.request_id = headers.get("x-request-id", "")[:128] or None
        if headers.get("content-type", "").startswith("text/event-stream"):
            self._events = Events()

    def body(self, data: bytes, at: float) -> None:
        self._at = at - self._started
        if self._events is None:
            super().body(data, at)
            return
        for event in self._events.feed(data):
            self._take(event)

    def end(self) -> str | None:
        """No more comes. Why this is no answer; None where it is one."""
        record = self._record
        rest = b"".join(self.parts) if self._events is None else self._events.rest()
        if rest is not None:
            self._take(rest)
        if record.status != 200:
            return f"{record.status} {self._error or ''}".strip()
        if self._error is not None:
            return f"event: {self._error}"
        if self._unreadable is not None:
            return self._unreadable
        if record.last is None:
            return "empty answer"
        return None if self._done or record.finish is not None else "cut off"

    def check(self, expect: str) -> None:
        """Whether it is the right answer, but for capitals, blanks at the ends and a full stop."""
        record = self._record
        record.answer = "".join(self._texts)[:MAX_ANSWER]
        said, right = (text.strip().lower().removesuffix(".") for text in (record.answer, expect))
        record.correct = said == right

    def _take(self, data: bytes) -> None:
        """One event, or the body of an answer in one piece."""
        if data.strip() == DONE:
            self._done = True
            return
        try:
            body = _read(data)
            error = body.error
            if isinstance(error, dict):
                error = error.get("code") or error.get("type") or error.get("message") or error
            name = str(error)[:80]  # short, so that errors can be counted
        except (msgspec.MsgspecError, RecursionError) as defect:
            self._unreadable = self._unreadable or f"unreadable answer: {str(defect)[:120]}"
            return
        if body.error is None:
            self._fill(body)
        else:
            self._error = self._error or name

    def _fill(self, body: Body) -> None:
        """What an event says, into the record."""
        record, choices = self._record, body.choices or [Choice(text=body.text, finish_reason=body.finish_reason)]
        said = [choice.said() for choice in choices]
        content = any(shown for _, shown in said)
        finish = next((choice.finish_reason for choice in choices if choice.finish_reason), None)
        if content:
            if self._streamed and record.first is None:
                record.first = self._at
            elif self._streamed:
                record.gaps.append(self._at - self._latest)
            self._latest = self._at
            record.events += 1
            self._texts.append("".join(text for text, _ in said))
        if content or finish is not None:
            record.last = self._at
        record.finish = finish or record.finish
        if body.usage is not None:
            record.prompt_tokens, record.output_tokens = body.usage.prompt_tokens, body.usage.completion_tokens
            record.stages = body.usage.timings or {}


class Client:
    """Sends requests to one target."""

    def __init__(self, pool: ConnectionPool, options: Options, *, started: float, model: str | None = None) -> None:
        """started: zero of all times in records, by perf_counter."""
        self._pool = pool
        self._options = options
        self._started = started
        self.model = model

    async def send(
        self, request: SampleRequest, due: float, *, step: int = 0, measured: bool = True,
        room: asyncio.Semaphore | None = None,
    ) -> Record:  # fmt: skip
        """Send one when there is room and wait for its end. `due` is in seconds of the run. Never raises."""
        options = self._options
        record = Record(
            index=request.index, step=step, kind=request.kind, bucket=request.bucket, measured=measured, due=due,
        )  # fmt: skip
        answer = AnswerReader(record, self._started, streamed=not options.no_stream)
        leave = math.inf if request.cancel_after is None else request.cancel_after
        try:
            async with room or nullcontext():
                body = body_of(request, options, self.model)
                message = self._pool.request("POST", APIS[options.api], {TIMINGS: "1", **options.headers()}, body)
                record.sent, record.sent_bytes = perf_counter() - self._started, len(body)
                with anyio.move_on_after(min(options.timeout, leave)) as limit:
                    await self._pool.exchange(message, answer)
            record.cancelled = limit.cancelled_caught and leave < options.timeout
            if not record.cancelled:
                record.error = "timeout" if limit.cancelled_caught else answer.end()
        except ConnectionFailed as failure:
            record.error = str(failure)
        except asyncio.CancelledError:
            record.error = "unfinished" if record.sent_bytes else "never sent"
        record.ended = perf_counter() - self._started
        record.sent = record.sent if record.sent_bytes else record.ended
        if record.output_tokens is None and record.events:
            record.output_tokens, record.tokens_by_events = record.events, True
        if request.expect is not None and record.answered:
            answer.check(request.expect)
        return record
