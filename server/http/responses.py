"""One HTTP exchange: work runs while the client stays, and its events become one JSON answer or a stream.

Knows no dialect: a Serializer says how things are written.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from model.engine.messages import Token
from server.http.errors import body_of, error_response
from server.requests.admission import stopping
from server.requests.answer import Accepted, Delta, Finish, Sink
from server.requests.answer_boxes import Grounded
from server.requests.refusal import Refusal, internal

log = logging.getLogger("pixelferry.http")

T = TypeVar("T")

KEEP_ALIVE_SECONDS = 15.0
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class WholeAnswer:
    """One whole answer."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.finish: Finish | None = None
        self.grounded: Grounded | None = None
        self._texts: list[str] = []

    @property
    def text(self) -> str:
        """Everything that was shown."""
        return "".join(self._texts)

    def add(self, delta: Delta) -> None:
        """The next delta of this answer."""
        self._texts.append(delta.text)
        self.tokens.extend(delta.tokens)
        self.finish = delta.finish
        self.grounded = delta.grounded


class CollectingSink:
    """All answers to one chat, whole; a sink."""

    def __init__(self) -> None:
        self.accepted = Accepted(prompt_tokens=0, media_tokens=0)
        self._answers: dict[int, WholeAnswer] = {}

    @property
    def answers(self) -> list[WholeAnswer]:
        """By index."""
        return [self._answers[index] for index in sorted(self._answers)]

    @property
    def n_tokens(self) -> int:
        """Of all answers."""
        return sum(len(whole.tokens) for whole in self.answers)

    async def accept(self, accepted: Accepted) -> None:
        self.accepted = accepted

    async def write(self, delta: Delta) -> None:
        self._answers.setdefault(delta.index, WholeAnswer()).add(delta)


class Serializer(Protocol):
    """How one route writes an answer. Events are complete SSE events, or b"" for none."""

    def whole(self, answer: CollectingSink) -> dict[str, Any]:
        """The plain answer."""

    def opening(self) -> bytes:
        """The first event."""

    def event(self, delta: Delta) -> bytes:
        """One delta."""

    def closing(self, accepted: Accepted, n_tokens: int) -> bytes:
        """What follows the last delta, before [DONE]."""


def data(value: Any) -> bytes:
    """One SSE event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"


async def run_while_connected(
    work: Coroutine[Any, Any, T], receive: Receive, idle: Callable[[], Awaitable[float]] | None = None
) -> T:
    """Run `work` as a task of its own; its result. When the client leaves first: cancel it, raise ClientGone.

    `idle` is called at once and then again after as many seconds as it returned, while the work goes on. Work that
    somebody else cancelled (a drain that ran out of time) is a Refusal.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(receive))
    try:
        while not task.done():
            timeout = await idle() if idle else None
            await asyncio.wait({task, gone}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if gone.done() and not task.done():
                raise ClientGone
        if task.cancelled():
            raise stopping()
        return task.result()
    finally:
        gone.cancel()
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a request that its client had left ended with an error: %r", error)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class StreamSink:
    """Writes events to the client as they come, and comments while none does."""

    def __init__(self, send: Send, serializer: Serializer) -> None:
        self.started = False
        self._send = send
        self._serializer = serializer
        self._accepted = Accepted(prompt_tokens=0, media_tokens=0)
        self._n_tokens = 0
        self._last = time.monotonic()
        self._writing = asyncio.Lock()

    async def accept(self, accepted: Accepted) -> None:
        self._accepted = accepted
        await self._write(self._serializer.opening())

    async def write(self, delta: Delta) -> None:
        self._n_tokens += len(delta.tokens)
        event = self._serializer.event(delta)
        if event:
            await self._write(event)

    async def keep_alive(self) -> float:
        """Send a comment when it is time; seconds until it may be time again."""
        left = self._last + KEEP_ALIVE_SECONDS - time.monotonic()
        if left > 0:
            return left
        await self._write(COMMENT)
        return KEEP_ALIVE_SECONDS

    async def finish(self) -> None:
        """The end of a good answer."""
        await self._write(self._serializer.closing(self._accepted, self._n_tokens) + DONE, more=False)

    async def fail(self, error: Refusal, request_id: str) -> None:
        """One error event, and the end."""
        await self._write(data(body_of(error, request_id)), more=False)

    async def _write(self, body: bytes, *, more: bool = True) -> None:
        async with self._writing:
            if not self.started:
                self.started = True
                await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
            self._last = time.monotonic()
            await self._send({"type": "http.response.body", "body": body, "more_body": more})


class EventStream(Response):
    """An SSE answer. What fails before the first event is an ordinary error answer, later it is one error event.

    The first event is written once the prompt is accepted, or as a comment after KEEP_ALIVE_SECONDS.
    """

    def __init__(self, run: Callable[[Sink], Coroutine[Any, Any, None]], serializer: Serializer) -> None:
        super().__init__()
        self._run = run
        self._serializer = serializer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request_id: str = scope["state"]["request_id"]
        sink = StreamSink(send, self._serializer)
        try:
            await run_while_connected(self._run(sink), receive, sink.keep_alive)
            await sink.finish()
            return
        except ClientGone:
            return
        except Refusal as caught:
            error = caught
        except Exception:  # noqa: BLE001 - the HTTP handler: once events flow, only an event can tell the client
            log.exception("request %s failed", request_id)
            error = internal("the server failed")
        if sink.started:
            await sink.fail(error, request_id)
        else:
            await error_response(error, request_id)(scope, receive, send)


async def whole_answer(
    run: Callable[[Sink], Coroutine[Any, Any, None]], serializer: Serializer, receive: Receive
) -> Response:
    """The whole answer at once. Raises Refusal."""
    answer = CollectingSink()
    return await json_result(run(answer), lambda _: serializer.whole(answer), receive)


async def json_result(work: Coroutine[Any, Any, T], write: Callable[[T], Any], receive: Receive) -> Response:
    """What `work` gives, as `write` puts it into JSON. Raises Refusal."""
    try:
        result = await run_while_connected(work, receive)
    except ClientGone:
        return Response(status_code=499)  # nobody reads it
    return json_response(write(result))


def json_response(value: Any) -> Response:
    """A success."""
    return Response(msgspec.json.encode(value), media_type="application/json")
