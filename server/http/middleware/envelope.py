"""What surrounds every HTTP answer: its request id, its line and count, and the 500 of last resort."""

import asyncio
import logging
import re
import secrets
import time

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.connection.guard import GUARD, Guard
from server.http.connection.telling import begin, telling
from server.http.errors import error_response
from server.logs.access import Exchange, finish, tell_error
from server.metrics import Metrics
from server.requests.admission import stopping
from server.requests.refusal import Refusal, head_too_long, internal, invalid_request
from server.stopwatch import Tally
from server.traces import Traces

log = logging.getLogger("pixelferry.http")

HTTP_VERSIONS = ("1.0", "1.1")
MOST_FIELDS = 256  # of a head
TIMINGS = b"x-pixelferry-timings"
ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def client_request_id(scope: Scope) -> str | None:
    """The client's X-Request-Id where it is short and harmless."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and ACCEPTED_ID.fullmatch(value):
            return bytes(value).decode("ascii")
    return None


def wants_timings(scope: Scope) -> bool:
    """Whether the client asks for the seconds of its request's stages."""
    return any(name == TIMINGS and value == b"1" for name, value in scope["headers"])


def not_spoken(scope: Scope) -> Refusal | None:
    """Why a head is not looked into: another version of HTTP, or more fields than any client of ours sends."""
    if scope.get("http_version", "1.1") not in HTTP_VERSIONS:
        return invalid_request("this server speaks HTTP/1.1 and HTTP/1.0", code="http_version")
    if len(scope["headers"]) > MOST_FIELDS:
        return head_too_long(MOST_FIELDS)
    return None


class Envelope:
    """Pure ASGI: gives each request an id of ours, each answer its X-Request-Id, each escaped exception a 500.

    Outside of everything else: what it does not see is not counted and not logged.
    X-Request-Id is the client's own where it sent a harmless one, else ours. Everything else says ours.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, traces: Traces | None = None) -> None:
        self._app = app
        self._metrics = metrics
        self._traces = traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, theirs = secrets.token_hex(12), client_request_id(scope)
        state = scope.setdefault("state", {})
        guard: Guard | None = state.get(GUARD)  # none where another server runs the application, as in tests
        tally = Tally(received=guard.received if guard else time.monotonic(), timed=wants_timings(scope))
        exchange = Exchange(request_id, theirs, tally)
        state.update(request_id=request_id, client_request_id=theirs, exchange=exchange)
        try:
            if guard is not None:
                await begin(guard, scope)
                send = telling(guard, receive, send)
            await self._answer(scope, receive, send, exchange)
        except ClientDisconnect:
            return  # it left while it was sending
        finally:
            if self._traces is not None:
                exchange.trace_id = self._traces.tell(scope, exchange)
            finish(scope, exchange, self._metrics)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        request_id, theirs = exchange.request_id, exchange.client_request_id
        shown = (theirs or request_id).encode("ascii")
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                exchange.status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", shown)]
            await send(message)
            if started and not message.get("more_body", message["type"] == "http.response.start"):
                exchange.whole = True

        try:
            if (error := not_spoken(scope)) is None:
                await self._app(scope, receive, send_with_id)
            else:
                answer = error_response(error, request_id)
                answer.headers["connection"] = "close"
                await answer(scope, receive, send_with_id)
        except ClientDisconnect:
            raise
        except asyncio.CancelledError:  # the server ends and waits no longer
            tell_error(scope, "cut_off")
            if started:
                raise
            await error_response(stopping(), request_id)(scope, receive, send_with_id)
        except Exception:  # noqa: BLE001 - the HTTP handler: a defect of ours is a 500, and nothing internal goes out
            log.exception("request %s (x-request-id %s) failed", request_id, theirs)
            tell_error(scope, "internal")
            if not started:  # else the answer breaks off: the HTTP server closes a connection whose answer is not whole
                response = error_response(internal("the server failed"), request_id)
                await response(scope, receive, send_with_id)
