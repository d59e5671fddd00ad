"""The one answer that a client gets, of a first replica or of a second one: when it has begun, and how it ends."""

import re
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Message, Scope, Send

from deploy.ray.forwarding import Head, Headers, Piece, to_client
from server.http.errors import body_of, error_response, in_dialect, status_of
from server.http.responses import data
from server.request_context import context_of
from server.requests.refusal import Refusal, unavailable

RETRIED = frozenset((500, 502, 503, 504))  # what another replica may do better
MARK = (b"x-pixelferry-ingress", b"1")  # tells the middleware in Serve's proxy whose answer it is; goes no further
MOST_HELD = 1 << 20  # bytes of an error's body
RESPONSES = "/v1/responses"

_COMMENTS = re.compile(rb"(?::[^\n]*\n|\n)+")
_ERROR_EVENT = re.compile(rb'^(?:event: error$|data: \{"error":)', re.MULTILINE)
_NAMED_EVENT = re.compile(rb"^event: ", re.MULTILINE)


class FirstFailed(Exception):
    """An answer that has not begun, and that another replica may give. With a head: what this one said of it."""

    def __init__(self, replica: str, head: Head | None = None, body: bytes = b"") -> None:
        super().__init__(replica)
        self.replica = replica  # "" where none took the request
        self.head = head
        self.body = body


class ForwardedAnswer:
    """A 200 with nothing but keep-alive comments has not begun: behind them another replica's events may come."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._started = False  # the head is out
        self._n_events = 0  # those that have names
        self._streams = False
        self.begun = False

    async def take(self, replica: str, head: Head, pieces: AsyncGenerator[Piece, None], *, retry: bool) -> None:
        """Hand on what a replica answers. Raises FirstFailed where that is a failure and has not begun, with `retry`.

        What `pieces` raises passes through.
        """
        if retry and head.status in RETRIED:
            raise FirstFailed(replica, head, await _whole(pieces))
        if self._started and not head.streams:
            await self._end(self._event(msgspec.json.decode(await _whole(pieces))))
            return
        self._streams = head.streams
        async for chunk in pieces:
            assert isinstance(chunk, bytes)
            if head.streams and not self.begun and not _COMMENTS.fullmatch(chunk):
                if retry and _ERROR_EVENT.search(chunk):
                    raise FirstFailed(replica, head, chunk)
                self.begun = True
            await self._start(head)
            self.begun = self.begun or not head.streams
            if self._scope["path"] == RESPONSES:
                self._n_events += len(_NAMED_EVENT.findall(chunk))
            await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        self.begun = True
        await self._start(head)
        await self._end(b"")

    async def fail(self, failed: FirstFailed) -> None:
        """The last word where no replica answers: what one said of it. Raises Refusal where none said anything."""
        if failed.head is None:
            raise replica_died() if failed.replica else no_replica()
        if failed.head.streams or not self._started:
            await self._start(failed.head)
            await self._end(failed.body)
        else:
            await self._end(self._event(msgspec.json.decode(failed.body)))

    async def refuse(self, refusal: Refusal) -> None:
        """The ingress's own error: an answer, or the last event. Of another begun answer the rest is missing: cut."""
        request_id = context_of(self._scope).id
        if not self._started:
            await self.say(error_response(refusal, request_id))
        elif self._streams:
            await self._end(self._event(in_dialect(body_of(refusal, request_id), status_of(refusal), self._scope)))

    async def say(self, response: Response) -> None:
        """The ingress's own answer."""
        self.begun = self._started = True
        await response(self._scope, _nothing, self._send_marked)

    async def _start(self, head: Head) -> None:
        if not self._started:
            self._started = True
            headers: Headers = [*to_client(head.headers), MARK]
            await self._send({"type": "http.response.start", "status": head.status, "headers": headers})

    async def _end(self, last: bytes) -> None:
        await self._send({"type": "http.response.body", "body": last})

    async def _send_marked(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], MARK]
        await self._send(message)

    def _event(self, body: dict[str, Any]) -> bytes:
        """As the route's streams end with an error. body: of the same error as a whole answer of the route."""
        if self._scope["path"] != RESPONSES:
            return data(body)
        error = body["error"]
        told = {"code": error["code"] or error["type"], "message": error["message"], "param": error["param"]}
        return data({"type": "error", "sequence_number": self._n_events, **told, "error": error})


def replica_died() -> Refusal:
    return unavailable("the replica that answered this request is gone", "replica_died")


def no_replica() -> Refusal:
    return unavailable("no replica of this service can take the request", "no_replica", retry_after=5)


async def _whole(pieces: AsyncGenerator[Piece, None]) -> bytes:
    body = bytearray()
    async for chunk in pieces:
        assert isinstance(chunk, bytes)
        if len(body) < MOST_HELD:
            body += chunk
    return bytes(body)


async def _nothing() -> Message:
    raise AssertionError("a whole answer waits for nothing")
