"""One request through an ASGI app without a server: what the app is told, and every message that it sends."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

from configs.serve import HttpConfig
from server.http.connection.request_body import BodyBudget, RequestBody
from server.http.connection.send_buffer import Clock
from server.http.middleware.request_middleware import RequestMiddleware
from server.metrics import Metrics


class Guard:
    """That of a connection which never ends."""

    def __init__(self) -> None:
        self.received = time.monotonic()
        self.sends = self
        self.begun = self.closes_after = False

    async def asked(self, request: Any, body: Any) -> None: ...

    async def drain(self) -> None: ...

    def ended(self) -> None: ...

    def body_ended(self) -> None: ...

    def is_closing(self) -> bool:
        return False

    def write(self, chunk: bytes) -> None:
        """Of an answer in chunks: it goes past the ASGI server."""


def behind_guard(app: Any) -> Any:
    """`app`, whose requests come as over a connection."""

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        scope.setdefault("state", {})["guard"] = Guard()
        await app(scope, receive, send)

    return guarded


def bodies(max_body: int = 1 << 20, inflight: int = 1 << 20) -> BodyBudget:
    return BodyBudget(HttpConfig(max_body_bytes=max_body, max_inflight_bytes=inflight), Clock())


def body_of(budget: BodyBudget, client: str = "", on_end: Callable[[], None] = lambda: None) -> RequestBody:
    """One of which nothing has come."""

    async def never() -> Any:
        await asyncio.Event().wait()

    body = RequestBody(never, budget, on_end, whole=False)
    body.client = client
    return body


def surrounded(app: Any, metrics: Metrics | None = None, budget: BodyBudget | None = None, **options: Any) -> Any:
    """`app` behind all that surrounds a route."""
    return behind_guard(RequestMiddleware(app, metrics or Metrics("tiny", "1"), budget or bodies(), **options))


def exchange(app: Any, chunks: list[bytes], headers: dict[bytes, bytes] | None = None, *, whole: bool = True) -> Any:
    """The messages that `app` sent. A body that is not whole ends with its client's leaving, as every request does."""
    framing = {b"host": b"a"} | ({} if b"content-length" in (headers or {}) else {b"transfer-encoding": b"chunked"})
    return messages_of(app, chunks, list((framing | (headers or {})).items()), whole=whole)


def messages_of(
    app: Any, chunks: list[bytes], headers: list[tuple[bytes, bytes]], *, whole: bool = True, **said: Any
) -> Any:
    """As `exchange`, where a header may stand there twice; `said` of the scope."""
    sent: list[Any] = []
    incoming = [{"type": "http.request", "body": body, "more_body": True} for body in chunks]
    incoming[-1]["more_body"] = not whole

    async def receive() -> Any:
        return incoming.pop(0) if incoming else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "http_version": "1.1", "method": "POST", "path": "/x", "headers": headers, **said}
    asyncio.run(app(scope, receive, send))
    return sent


def ask(app: Any, chunks: list[bytes], headers: dict[bytes, bytes] | None = None) -> tuple[int, dict[str, str], Any]:
    """One request through `app`: status, headers and JSON of its answer."""
    sent = exchange(app, chunks, headers)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    answer_headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answer_headers, json.loads(body)
