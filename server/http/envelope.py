"""What surrounds every HTTP answer: its request id, and the 500 of last resort."""

import logging
import re
import secrets

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from server.http.errors import error_response
from server.requests.refusal import internal

log = logging.getLogger("pixelferry.http")

ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._-]{1,64}")


def client_request_id(scope: Scope) -> str | None:
    """The client's X-Request-Id where it is short and harmless."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and ACCEPTED_ID.fullmatch(value):
            return bytes(value).decode("ascii")
    return None


class Envelope:
    """Pure ASGI: gives each request an id of ours, each answer its X-Request-Id, each escaped exception a 500.

    X-Request-Id is the client's own where it sent a harmless one, else ours. Everything else says ours.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id, theirs = secrets.token_hex(12), client_request_id(scope)
        scope.setdefault("state", {}).update(request_id=request_id, client_request_id=theirs)
        shown = (theirs or request_id).encode("ascii")
        started = False

        async def send_with_id(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", shown)]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            return  # it left while it was sending its body
        except Exception:  # noqa: BLE001 - the HTTP handler: a defect of ours is a 500, and nothing internal goes out
            log.exception(
                "request %s (x-request-id %s): %s %s failed", request_id, theirs, scope["method"], scope["path"]
            )
            if not started:  # else the answer breaks off: the HTTP server closes a connection whose answer is not whole
                response = error_response(internal("the server failed"), request_id)
                await response(scope, receive, send_with_id)
