"""Bytes that never became a request: how they are answered, counted, and named in the log a few times a minute."""

import asyncio
import logging
import secrets

import msgspec

from server.http.errors import body_of, code_of, status_of
from server.logs.access import address_of
from server.logs.line_bound import LineBound
from server.metrics import MALFORMED, Metrics
from server.requests.refusal import Refusal

log = logging.getLogger("pixelferry.http")

HEAD = (
    "HTTP/1.1 %d\r\nconnection: close\r\nx-request-id: %s\r\n"
    "content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)


class BadRequests:
    """Of all connections of one server."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._bound = LineBound()

    def answer(self, refusal: Refusal, transport: asyncio.Transport) -> bytes:
        """The whole answer to what is refused; the connection is closed after it."""
        status, request_id = status_of(refusal), secrets.token_hex(12)
        body = msgspec.json.encode(body_of(refusal, request_id))
        self._metrics.malformed(status)
        self._metrics.reject(code_of(refusal))
        self._metrics.errors.add(
            route=MALFORMED, status=status, code=code_of(refusal), request_id=request_id, authorized=False
        )
        self._warn(refusal.message, transport)
        return (HEAD % (status, request_id, len(body))).encode() + body

    def malformed(self, transport: asyncio.Transport) -> None:
        """uvicorn has answered, where it still could."""
        self._metrics.malformed(400)
        self._warn("not a valid HTTP request", transport)

    def rejected(self, reason: str) -> None:
        """A connection without a request is closed."""
        self._metrics.reject(reason)

    def _warn(self, what: str, transport: asyncio.Transport) -> None:
        others = self._bound.take()
        if others is not None:
            client = address_of(transport.get_extra_info("peername"))
            log.warning("%s%s", what, others, extra={"fields": {"client": client}})
