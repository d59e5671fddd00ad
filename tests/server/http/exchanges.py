"""One request through an ASGI app without a server: what the app is told, and every message that it sends."""

import asyncio
import json
from typing import Any


def exchange(app: Any, chunks: list[bytes], headers: dict[bytes, bytes] | None = None, *, whole: bool = True) -> Any:
    """The messages that `app` sent. A body that is not whole ends with its client's leaving, as every request does."""
    return messages_of(app, chunks, list((headers or {}).items()), whole=whole)


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

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": headers, **said}
    asyncio.run(app(scope, receive, send))
    return sent


def ask(app: Any, chunks: list[bytes], headers: dict[bytes, bytes] | None = None) -> tuple[int, dict[str, str], Any]:
    """One request through `app`: status, headers and JSON of its answer."""
    sent = exchange(app, chunks, headers)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    answer_headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answer_headers, json.loads(body)
