"""What surrounds every route: a request's context, whether it may ask, each message of its answer, the last resort."""

import asyncio
import logging
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from h11 import LocalProtocolError
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.connection.guard import Guard
from server.http.connection.request_body import BodyBudget, RequestBody
from server.http.errors import ANTHROPIC, error_response
from server.http.middleware.addresses import LOCAL, check_host, client_of_address
from server.http.middleware.key_limits import RATE_HEADERS, KeyPlace
from server.http.middleware.keys import OPEN_PATHS, ApiKeys, check_key
from server.http.pages import PATHS
from server.logs.access import log_answer
from server.logs.line_bound import LineBound
from server.metrics import Metrics
from server.request_context import RequestContext
from server.requests.admission import stopping
from server.requests.refusal import (
    Refusal,
    body_too_large,
    field_too_long,
    head_too_long,
    internal,
    invalid_request,
)
from server.traces import Traces
from tokenization.chat.errors import shortened

log = logging.getLogger("pixelferry.http")

HTTP_VERSIONS = ("1.0", "1.1")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
MOST_FIELDS = 256  # of a head
# Bytes of those that something takes to pieces, by Python's own steps: a head may have many more.
LONGEST = {
    b"content-type": 256,
    b"host": 512,
    b"origin": 512,
    b"traceparent": 256,
    b"tracestate": 1024,
    b"baggage": 1024,
}
ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
CLOSE = (b"connection", b"close")
REQUEST_ID = b"x-request-id"
LEFT_OUT = b"x-pixelferry-tools-left-out"
NOT_IN_LISTS = re.compile(r"[^A-Za-z0-9 _.:/-]")
LONGEST_LIST = 1024  # characters
LAST: Message = {"type": "http.response.body", "body": b""}


@dataclass(slots=True)
class Head:
    """What the server itself looks at of a request's head."""

    hosts: list[bytes] = field(default_factory=list)
    authorizations: list[bytes] = field(default_factory=list)
    length: int | None = None  # of the body, as the client announces it
    chunked: bool = False  # the body ends where it says so
    too_long: bytes = b""  # the name of a field
    client_request_id: str | None = None  # where it is short and harmless
    wants_timings: bool = False


class RequestMiddleware:
    """Outside of everything else: what it does not see is not counted and not logged.

    Gives each request its context with an id of ours, each answer its X-Request-Id (the client's own where it sent a
    harmless one), each escaped exception a 500. Whom it turns away is answered before a byte of a body is read.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, bodies: BodyBudget, *, traces: Traces | None = None,
        keys: ApiKeys | None = None, hosts: Collection[str] | None = None, origins: Sequence[str] = (),
        root_path: str | None = None,
    ) -> None:  # fmt: skip
        """keys: None: all may ask; hosts: as check_host takes them; origins: of pages whose scripts may read answers;
        root_path: what a proxy leaves in front of a path, with a slash before it and none behind.
        """
        self._app = app
        self._metrics = metrics
        self._traces = traces
        self._bodies = bodies
        self._keys = keys
        self._hosts = None if hosts is None else LOCAL.union(hosts)
        self._prefix = root_path
        self._pages = PATHS if root_path is None else PATHS | {root_path}  # they are open
        self._origins = origins
        self._unauthorized = LineBound()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guard: Guard = scope["state"]["guard"]
        if self._prefix is not None and scope["path"].startswith(f"{self._prefix}/"):
            scope["path"] = scope["path"].removeprefix(self._prefix)
        head = read_head(scope)
        body = RequestBody(receive, self._bodies, guard.body_ended, whole=not (head.chunked or head.length))
        context = scope["state"]["context"] = RequestContext(
            os.urandom(12).hex(),
            client_request_id=head.client_request_id,
            method=scope["method"] if scope["method"] in METHODS else "other",
            received=guard.received,
            body=body,
            wants_timings=head.wants_timings,
        )
        answer = AnswerSender(guard, body, context, send, http_version=scope["http_version"])
        if scope["path"].startswith(ANTHROPIC):
            answer.id_names = (REQUEST_ID, b"request-id")  # where its SDK looks
        try:
            await guard.asked(context, body)
            refusal = self._refusal(scope, head, answer)
            app = self._app if refusal is None else error_response(refusal, context.id)
            if self._origins:  # around what refuses, so that a page can read that, too
                app = PagesMayRead(app, self._origins)
            await app(scope, body.receive, answer.send)
        except ClientDisconnect:
            return  # it left while it was sending
        except asyncio.CancelledError:  # the server ends and waits no longer
            context.error = "cut_off"
            if answer.begun:
                raise
            await error_response(stopping(), context.id)(scope, receive, answer.send)
        except Exception:  # noqa: BLE001 - the HTTP handler: a defect of ours is a 500, and nothing internal goes out
            log.exception("request %s (x-request-id %s) failed", context.id, context.client_request_id)
            context.error = "internal"
            if not answer.begun:  # else it breaks off: the HTTP server closes a connection whose answer is not whole
                await error_response(internal("the server failed"), context.id)(scope, receive, answer.send)
        finally:
            body.keep(0)
            if answer.place is not None:
                answer.place.leave()
            if self._traces is not None:
                context.trace_id = self._traces.tell(scope, context)
            log_answer(scope, context, self._metrics, self._unauthorized)

    def _refusal(self, scope: Scope, head: Head, answer: "AnswerSender") -> Refusal | None:
        """Why it is turned away. Probes need no name, and have no body."""
        if scope["http_version"] not in HTTP_VERSIONS or len(scope["headers"]) > MOST_FIELDS:
            answer.guard.closes_after = True
            if scope["http_version"] in HTTP_VERSIONS:
                return head_too_long(MOST_FIELDS)
            return invalid_request("this server speaks HTTP/1.1 and HTTP/1.0", code="http_version")
        if head.too_long:
            return field_too_long(head.too_long.decode("ascii"), LONGEST[head.too_long])
        if head.chunked and head.length is not None:  # a proxy may believe the other one
            answer.guard.closes_after = True
            return invalid_request("a request has a Content-Length or a Transfer-Encoding, this one has both")
        is_open, most = scope["path"] in OPEN_PATHS, self._bodies.config.max_body_bytes
        try:
            check_host(head.hosts, None if is_open else self._hosts, scope["http_version"])
            # Of what is answered without a key, anybody can ask for any number of errors and lines.
            answer.context.authorized = self._keys is None
            if is_open:
                return None
            # A browser asks by OPTIONS whether it may send a key: no route runs for it.
            if self._keys is not None and scope["method"] != "OPTIONS" and scope["path"] not in self._pages:
                key, limits = check_key(head.authorizations, self._keys), self._keys.limits
                answer.context.key = key.digest.hex()
                answer.context.authorized = True
                client = f"key {answer.context.key}"
                if limits is not None:
                    answer.place = limits.place(key.label)
                    answer.context.count = answer.place.take
            else:
                client = client_of_address(scope.get("client"))
            answer.context.client = client if self._bodies.config.client_share == "fair" else ""  # one for all
            answer.body.client = answer.context.client
        except Refusal as error:
            return error
        return body_too_large(most) if (head.length or 0) > most else answer.body.refusal


class PagesMayRead(CORSMiddleware):
    """Tells browsers which pages' scripts may read an answer."""

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app, allow_origins=list(origins), allow_methods=["GET", "POST"], allow_headers=["*"],
            expose_headers=["X-Request-Id", "Request-Id", "Retry-After", LEFT_OUT.decode(), *RATE_HEADERS],
        )  # fmt: skip

    def preflight_response(self, request_headers: Headers) -> Response:
        """The same for a page that may not, in the form of every error."""
        answer = super().preflight_response(request_headers)
        if answer.status_code == 200:
            return answer
        refused = error_response(invalid_request(bytes(answer.body).decode(), code="cors_refused"), "")
        for name, value in answer.headers.items():
            refused.headers.setdefault(name, value)
        return refused


@dataclass(slots=True)
class AnswerSender:
    """The answer to one request on its way out: what each message tells its connection and its context."""

    guard: Guard
    body: RequestBody
    context: RequestContext
    to_client: Send
    http_version: str = "1.0"  # of the request
    id_names: tuple[bytes, ...] = (REQUEST_ID,)  # the headers that tell the request's id
    begun: bool = False
    chunked: bool = False  # as h11 announces it: to HTTP/1.1, where nobody tells the length of a body
    place: KeyPlace | None = None  # where its key has limits

    async def send(self, message: Message) -> None:
        """As ASGI has it. What is left of a body is read before its answer ends.

        So a client that still sends hears its answer, and what it sends is never taken for a request. A chunk is
        written past h11, whose state it does not change.
        """
        context, guard = self.context, self.guard
        if self.chunked and message.get("more_body") and (piece := message["body"]):
            guard.sends.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            return
        messages = [message]
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if message["type"] == "http.response.start":
            self.begun, guard.begun, self.body.answered, context.status = True, True, True, message["status"]
            shown = (context.client_request_id or context.id).encode("ascii")
            ids = [(name, shown) for name in self.id_names]
            more = [] if self.place is None else [*self.place.headers]
            more += [(LEFT_OUT, header_list(context.left_out))] if context.left_out else []
            headers = [*message.get("headers", ()), *ids, *more, *([CLOSE] if guard.closes_after else [])]
            message["headers"] = headers
            has_body = message["status"] == 200 and context.method not in ("HEAD", "other")
            self.chunked = has_body and self.http_version == "1.1" and b"content-length" not in dict(headers)
        elif last and not self.body.whole:
            messages = [{**message, "more_body": True}, LAST]
        for one in messages:
            if one is LAST:
                await guard.drain()
            try:
                await self.to_client(one)
            except LocalProtocolError:
                if not guard.sends.is_closing():  # else the client said something that ended the connection
                    raise
        if last:
            context.whole = True
            guard.ended()


def header_list(words: Sequence[str]) -> bytes:
    """A client's own words as the value of a header: short, and of characters that stand in one."""
    found = ", ".join(NOT_IN_LISTS.sub("?", word) for word in words)
    return shortened(found, LONGEST_LIST).encode("ascii")


def read_head(scope: Scope) -> Head:
    """One pass over all fields."""
    head = Head()
    for name, value in scope["headers"]:
        if name in LONGEST and len(value) > LONGEST[name]:
            head.too_long = name
        if name == b"host":
            head.hosts.append(value)
        elif name == b"authorization":
            head.authorizations.append(value)
        elif name == b"x-api-key":  # Anthropic's clients say it so
            head.authorizations.append(b"Bearer " + value)
        elif name == b"content-length":
            head.length = int(value)  # uvicorn has refused what is no number
        elif name == b"transfer-encoding":
            head.chunked = True
        elif name == REQUEST_ID and ACCEPTED_ID.fullmatch(value):
            head.client_request_id = value.decode("ascii")
        elif name == b"x-pixelferry-timings":
            head.wants_timings = value == b"1"
    return head
