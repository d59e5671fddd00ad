"""How many bytes of bodies are taken: from one client and from all at once. Pure ASGI; parses nothing."""

import functools
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from configs.serve import HttpConfig
from server.http.connection.arrival import ARRIVAL, Arrival
from server.http.connection.clock import Clock
from server.http.errors import error_response
from server.http.middleware.keys import OPEN_PATHS
from server.requests.refusal import body_too_large, overloaded

KEEP = "keep"  # in the state of a request's scope: what whoever has read the body says of it
Keep = Callable[[int], None]  # so many bytes of it are still held


class BodyBudget:
    """Bytes of request bodies that the server holds now, of all requests together.

    Where there is no room, the body that lags most behind the least rate gives way: whoever stops sending holds
    nothing against those who send.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._bodies: dict[Arrival, None] = {}

    def take(self, body: Arrival, nbytes: int) -> bool:
        """Count `nbytes` more of `body`; False, and nothing counted, when they do not fit."""
        while self.held + nbytes > self.limit:
            laggards = [one for one in self._bodies if one.lags() and one is not body]
            if not laggards:
                return False
            slowest = min(laggards, key=lambda one: one.due)
            self.give_back(slowest)
            slowest.refuse(overloaded("others need the room of this request's body, which came slowly", "bodies_full"))
        self.held += nbytes
        body.held += nbytes
        self._bodies[body] = None
        return True

    def keep(self, body: Arrival, nbytes: int) -> None:
        """Of a body that was read no more than so many bytes are still held; the rest is others' at once."""
        kept = min(body.held, nbytes)
        self.held -= body.held - kept
        body.held = kept
        if not kept:
            self._bodies.pop(body, None)

    def give_back(self, body: Arrival) -> None:
        """All that is held of it."""
        self.keep(body, 0)


class BodyLimits:
    """A larger body is a 413, one that the budget has no room for now a 429; both before anything is parsed.

    Bytes are counted as they arrive, never by what Content-Length announces: a client that only announces holds
    nothing. A body that the connection takes no further ends with the connection's own refusal.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, budget: BodyBudget) -> None:
        self._app = app
        self._max = max_body_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body: Arrival = scope["state"].setdefault(ARRIVAL, Arrival(HttpConfig(), Clock()))
        refusal = body_too_large(self._max) if announced(scope) > self._max else body.refusal
        if refusal is not None and scope["path"] not in OPEN_PATHS:
            await error_response(refusal, scope["state"]["request_id"])(scope, receive, send)
            return
        keep: Keep = functools.partial(self._budget.keep, body)
        scope["state"][KEEP] = keep
        n = 0

        async def counted() -> Message:
            nonlocal n
            message = await body.next(receive)
            nbytes = len(message.get("body", b"")) if message["type"] == "http.request" else 0
            n += nbytes
            if n > self._max:
                raise body_too_large(self._max)
            if nbytes and not self._budget.take(body, nbytes):
                raise overloaded("too many request bodies are being read", "bodies_full")
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._budget.give_back(body)


def announced(scope: Scope) -> int:
    """Content-Length, 0 where there is none (uvicorn has refused what is no number)."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
