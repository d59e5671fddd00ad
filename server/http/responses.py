"""One HTTP exchange: work runs while the client stays, and what it gives is written in slices, or as a stream."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from server.http.errors import body_of, code_of, error_response, in_dialect, status_of
from server.request_context import context_of
from server.requests.admission import stopping
from server.requests.answer import Delta, Emit
from server.requests.refusal import Refusal, internal
from tokenization.messages import Prepared

log = logging.getLogger("pixelferry.http")

T = TypeVar("T")
RunRequest = Callable[[Emit], Coroutine[Any, Any, None]]  # a request to the model, which emits its answer

KEEP_ALIVE_SECONDS = 15.0
SLICE = 32768  # bytes of JSON; about a millisecond of making and writing log-probabilities
DONE = b"data: [DONE]\n\n"
COMMENT = b": keep-alive\n\n"
STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # or nginx holds events back
]


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


class Serializer(Protocol):
    """How one route writes one answer. Events are complete SSE events, or b"" for none; of a long one, its object."""

    def whole(self, prepared: Prepared, answers: Sequence[Delta], n_tokens: int) -> dict[str, Any]:
        """The plain answer: each of `answers` is whole, in order of index; they have so many tokens together."""

    def event(self, prepared: Prepared, delta: Delta) -> bytes | dict[str, Any]:
        """What the delta adds to a stream; before the first text of an answer stands all that opens it."""

    def closing(self, prepared: Prepared, n_tokens: int) -> bytes | dict[str, Any]:
        """What follows the last delta, as of `event`; behind it comes what ends every stream of the route."""


class LazyList:
    """A list whose entries are made as they are written, and each time that they are."""

    def __init__(self, make: Callable[[], Iterable[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return iter(self._make())


def encoded(value: Any) -> bytes:
    """All of it at once: what is known to be short."""
    return msgspec.json.encode(value, enc_hook=list)  # nothing of ours but LazyList is unknown to it


async def written(value: Any) -> list[bytes]:
    """The JSON of `value`, whose long lists are LazyList. Between two slices others have their turn."""
    slices: list[bytes] = []
    found = bytearray()
    for piece in _pieces(value):
        found += piece
        if len(found) >= SLICE:
            slices.append(bytes(found))
            found.clear()
            await asyncio.sleep(0)
    return [*slices, bytes(found)]


def _pieces(value: Any) -> Iterator[bytes]:
    """An object that holds no other and no LazyList is one piece, as is any other list."""
    if isinstance(value, LazyList):
        opening = b"["
        for entry in value:
            yield opening
            yield from _pieces(entry)
            opening = b","
        yield b"[]" if opening == b"[" else b"]"
    elif isinstance(value, dict) and not {dict, LazyList}.isdisjoint(map(type, value.values())):
        opening = b"{"
        for key, inner in value.items():
            yield b"%b%b:" % (opening, msgspec.json.encode(key))
            yield from _pieces(inner)
            opening = b","
        yield b"}"
    else:
        yield msgspec.json.encode(value, enc_hook=list)


def data(value: dict[str, Any]) -> bytes:
    return opening(value) + encoded(value) + b"\n\n"


def opening(value: dict[str, Any]) -> bytes:
    """Of an event, which has the name that its `type` says, where it has one."""
    name = value.get("type")
    return b"data: " if name is None else b"event: %b\ndata: " % name.encode()


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
                log.error("a request that its client had left ended with an error", exc_info=error)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """An SSE answer, with comments while no event comes.

    What fails before the first event is an ordinary error answer, later it is one error event. Nothing is written
    before the first token was computed, so that a client's time to it is true, but comments after KEEP_ALIVE_SECONDS.
    """

    def __init__(
        self, run: RunRequest, serializer: Serializer, done: bytes = DONE,
        failed: Callable[[dict[str, Any]], bytes] = data,
    ) -> None:  # fmt: skip
        """done: ends a stream; failed: makes the event of an error's body."""
        super().__init__()
        self._run = run
        self._serializer = serializer
        self._done = done
        self._failed = failed
        self._send: Send | None = None  # while it answers
        self._prepared: Prepared | None = None
        self._started = False
        self._n_tokens = 0
        self._last = 0.0  # when something was written, by time.monotonic()
        self._slicing = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        context = context_of(scope)
        self._send, self._last = send, time.monotonic()
        try:
            await run_while_connected(self._run(self._emit), receive, self._keep_alive)
            assert self._prepared is not None
            closing = self._serializer.closing(self._prepared, self._n_tokens)
            if isinstance(closing, dict):
                await self._write(closing)
                closing = b""
            await self._write(closing + self._done, more=False)
            return
        except ClientGone:
            return
        except Refusal as caught:
            error = caught
        except Exception:  # noqa: BLE001 - the HTTP handler: once events flow, only an event can tell the client
            log.exception("request %s failed", context.id)
            error = internal("the server failed")
        if self._started:
            context.error = code_of(error)
            body = in_dialect(body_of(error, context.id), status_of(error), scope)
            await self._write(self._failed(body), more=False)
        else:
            await error_response(error, context.id)(scope, receive, send)

    async def _emit(self, prepared: Prepared, delta: Delta) -> None:
        self._prepared = prepared
        self._n_tokens += len(delta.tokens)
        event = self._serializer.event(prepared, delta)
        if event:
            await self._write(event)

    async def _keep_alive(self) -> float:
        """Send a comment when it is time; seconds until it may be time again."""
        left = self._last + KEEP_ALIVE_SECONDS - time.monotonic()
        if left > 0:
            return left
        await self._write(COMMENT)
        return KEEP_ALIVE_SECONDS

    async def _write(self, body: bytes | dict[str, Any], *, more: bool = True) -> None:
        """Nothing comes between its two messages: to send never waits (see connection/send_buffer.py)."""
        assert self._send is not None
        if isinstance(body, dict):
            async with self._slicing:  # of all prompts one is made at a time
                body = b"".join([opening(body), *await written(body), b"\n\n"])
        if not self._started:
            self._started = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(STREAM_HEADERS)})
        self._last = time.monotonic()
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


class JsonAnswer(Response):
    """JSON, or what `kind` says, in the slices that `work` gives, so that others have their turn in between.

    May raise Refusal.
    """

    def __init__(self, work: Callable[[], Coroutine[Any, Any, list[bytes]]], kind: bytes = b"application/json") -> None:
        super().__init__()
        self._kind = kind
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            slices = await run_while_connected(self._work(), receive)
        except ClientGone:
            return
        length = str(sum(map(len, slices))).encode("ascii")
        headers = [(b"content-length", length), (b"content-type", self._kind)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        slices.reverse()
        while slices:
            body = slices.pop()
            await send({"type": "http.response.body", "body": body, "more_body": bool(slices)})
            await asyncio.sleep(0)  # the connection takes everything without waiting


async def whole_answer(run: RunRequest, serializer: Serializer) -> list[bytes]:
    """All that a request emits, as one JSON object in slices."""
    return await written(serializer.whole(*await _collected(run)))


async def plain_answer(run: RunRequest) -> list[bytes]:
    """The text that a request emits."""
    _, answers, _ = await _collected(run)
    return [answer.text.encode() for answer in answers]


async def _collected(run: RunRequest) -> tuple[Prepared, list[Delta], int]:
    """What `Serializer.whole` takes."""
    answers: dict[int, Delta] = {}
    n_tokens, accepted = 0, None

    async def lay_by(prepared: Prepared, delta: Delta) -> None:
        nonlocal n_tokens, accepted
        accepted = accepted or prepared
        answers[delta.index] = delta
        n_tokens += len(delta.tokens)

    await run(lay_by)
    assert accepted is not None, "what ends without an error has been answered"
    return accepted, sorted(answers.values(), key=attrgetter("index")), n_tokens


def model_response(
    run: RunRequest, serializer: Serializer, *, stream: bool, done: bytes = DONE,
    failed: Callable[[dict[str, Any]], bytes] = data,
) -> Response:  # fmt: skip
    """What `run` emits, as a stream or in one piece. done, failed: as EventStream takes them."""
    if stream:
        return EventStream(run, serializer, done, failed)
    return JsonAnswer(partial(whole_answer, run, serializer))


def json_response(value: Any) -> Response:
    """Of a short value."""
    return Response(encoded(value), media_type="application/json")
