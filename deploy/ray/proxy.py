"""Middleware inside Serve's proxy: bodies bounded there, one request id, errors of Serve's own in our JSON.

`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH=deploy.ray.proxy:middlewares` in the environment of every `ray start`.
"""

import re

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from configs.settings import load_config
from deploy.ray.answer import MARK, no_replica
from server.http.errors import error_response
from server.request_context import RequestContext
from server.requests.refusal import Refusal, body_too_large, internal, not_found, timed_out

ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")
# Headers by which a client would tell Serve to keep working for one that left, or for how long.
_OF_SERVE = frozenset((b"x-request-disconnect-disabled", b"x-request-timeout-seconds"))


def middlewares() -> list[Middleware]:
    """What Serve asks for once in each proxy."""
    return [Middleware(AroundServe, max_body_bytes=load_config([]).http.max_body_bytes)]


class AroundServe:
    """Outside of Serve's proxy, inside of its HTTP server."""

    def __init__(self, app: ASGIApp, max_body_bytes: int) -> None:
        self._app = app
        self._max_body = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope["headers"] = [pair for pair in scope["headers"] if _kept(pair)]
        answer = ProxyAnswer(scope, send)
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > self._max_body:
            await answer.refuse(body_too_large(self._max_body))
            return
        await self._app(scope, self._bounded(receive, answer), answer.send)
        await answer.refuse(internal("the service gave no answer", "no_answer"))

    def _bounded(self, receive: Receive, answer: "ProxyAnswer") -> Receive:
        """While no ingress takes it, Serve's proxy holds all of a body that comes, whatever its size."""
        n = 0

        async def counted() -> Message:
            nonlocal n
            message = await receive()
            n += len(message.get("body", b""))
            if n <= self._max_body:
                return message
            await answer.refuse(body_too_large(self._max_body))
            return {"type": "http.disconnect"}

        return counted


class ProxyAnswer:
    """What goes out: an answer of the ingress as it is but for its mark, an error of Serve's own as JSON."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begun = False
        self._refused = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and not self._refused:
            ours = MARK in message["headers"]
            if not ours and message["status"] >= 400:
                await self.refuse(_of_serve(message["status"]))
            message = {**message, "headers": [pair for pair in message["headers"] if pair != MARK]}
        if not self._refused:
            self._begun = True
            await self._send(message)

    async def refuse(self, refusal: Refusal) -> None:
        """The whole answer, where nothing of one has begun."""
        if self._begun:
            return
        self._begun = self._refused = True
        given = dict(self._scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        self._scope.setdefault("state", {})["context"] = RequestContext(given)
        response = error_response(refusal, given)
        if given:
            response.headers["x-request-id"] = given
        await response(self._scope, _nothing, self._send)


def _kept(header: tuple[bytes, bytes]) -> bool:
    """Whether Serve may see it: an id that a server would not take is replaced by Serve's own."""
    name, value = header
    return name not in _OF_SERVE and (name != b"x-request-id" or ACCEPTED_ID.fullmatch(value) is not None)


def _of_serve(status: int) -> Refusal:
    """What Serve's proxy means by a status."""
    if status == 404:
        return not_found("this service has no such application", code="route_not_found")
    if status == 408:
        return timed_out("the answer took longer than request_timeout_s of the service", "request_timeout")
    return no_replica() if status == 503 else internal("the service failed", "ingress_died")


async def _nothing() -> Message:
    raise AssertionError("a whole answer waits for nothing")
