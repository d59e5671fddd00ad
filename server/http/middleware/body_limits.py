"""How many bytes of bodies are taken: from one client and from all at once. Pure ASGI; parses nothing."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import error_response
from server.requests.refusal import body_too_large, overloaded


class BodyBudget:
    """Bytes of request bodies that the server holds now, of all requests together."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0

    def take(self, nbytes: int) -> bool:
        """Count `nbytes` more; False, and nothing counted, when they do not fit."""
        if self.held + nbytes > self.limit:
            return False
        self.held += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        self.held -= nbytes


class BodyLimits:
    """A larger body is a 413, one that the budget has no room for now a 429; both before anything is parsed.

    Bytes are counted as they arrive, never by what Content-Length announces: a client that only announces holds
    nothing.
    """

    def __init__(self, app: ASGIApp, max_body_bytes: int, budget: BodyBudget) -> None:
        self._app = app
        self._max = max_body_bytes
        self._budget = budget

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if announced(scope) > self._max:
            await error_response(body_too_large(self._max), scope["state"]["request_id"])(scope, receive, send)
            return
        held = 0

        async def counted() -> Message:
            nonlocal held
            message = await receive()
            nbytes = len(message.get("body", b"")) if message["type"] == "http.request" else 0
            if held + nbytes > self._max:
                raise body_too_large(self._max)
            if not self._budget.take(nbytes):
                raise overloaded("too many request bodies are being read", "bodies_full")
            held += nbytes
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._budget.give_back(held)


def announced(scope: Scope) -> int:
    """Content-Length, 0 where there is none (uvicorn has refused what is no number)."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0
