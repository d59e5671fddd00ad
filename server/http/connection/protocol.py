"""One connection: uvicorn's reader of HTTP, with bounds on what its client may send, withhold and leave unread."""

import asyncio
import logging
import secrets
import time
from typing import Any, cast

import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from server.http.connection.arrival import ARRIVAL, Arrival
from server.http.connection.connections import Connections
from server.http.connection.outbox import Outbox
from server.http.errors import body_of, code_of, status_of
from server.logs.access import RECEIVED, address_of, tell_error
from server.logs.bounded import Bound
from server.metrics import Metrics
from server.requests.refusal import Refusal, head_too_large, timed_out, unavailable

log = logging.getLogger("pixelferry.http")

LINES, SECONDS = 10, 60.0


class Protocol(HttpToolsProtocol):
    """What no HTTP parser can read, or what has no whole head, has no request and no id: an answer that closes it."""

    def __init__(self, *args: Any, connections: Connections, metrics: Metrics, bound: Bound, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._of_server = connections
        self._metrics = metrics
        self._bound = bound
        self._max_head = connections.config.max_head_bytes
        self._framing = 0  # bytes in a row that belong to no body: a head, a chunk's length, trailers
        self._in_head = False
        self._holds_back = False
        self._fits = True
        self._arrival: Arrival | None = None  # of the body that comes

    # ---- the transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._outbox = Outbox(transport, self._of_server.unread, self._rejected)
        self._fits = self._of_server.enter(self)
        super().connection_made(self._outbox)

    def connection_lost(self, exc: Exception | None) -> None:
        self._of_server.leave(self)
        self._outbox.drop()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Nobody waits for a slow reader: see the outbox."""
        self._outbox.pause_writing()

    def resume_writing(self) -> None:
        self._outbox.resume_writing()
        if self._holds_back:
            self.on_response_complete()

    def data_received(self, data: bytes) -> None:
        self._of_server.spoke(self)
        while data and not self.transport.is_closing():
            room = self._max_head - self._framing
            piece, data = (data, b"") if len(data) <= room else (data[:room], data[room:])
            self._framing += len(piece)
            super().data_received(piece)
            self._framing = max(0, self._framing)
            if self._framing >= self._max_head:
                self._turn_away(head_too_large(self._max_head))

    # ---- the parser's side

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self.scope["state"][RECEIVED] = time.monotonic()  # its task begins later, after whatever else is ready to run

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # what follows a body is no header
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        of_server = self._of_server
        of_server.asked(self)
        arrival = self._arrival = Arrival(of_server.config, of_server.clock, self._stop_body)
        if not self._fits:
            arrival.refusal = unavailable("this server has as many connections as it takes", "connections_full")
        self.scope["state"][ARRIVAL] = arrival
        super().on_headers_complete()
        self._in_head = False
        self._framing = 0
        self.cycle.keep_alive = self.cycle.keep_alive and self._fits

    def on_chunk_header(self) -> None:
        self._framing = 0

    def on_body(self, body: bytes) -> None:
        self._framing -= len(body)
        if self._arrival is not None:
            self._arrival.took(len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self._arrival is not None:
            self._arrival.whole = True
            self._arrival = None
        self._framing = 0
        self._of_server.sent(self)
        super().on_message_complete()
        self._rest_if_done()

    def on_response_complete(self) -> None:
        """Nothing further is read, or answered, before the client has taken this answer."""
        if self._outbox.held and not self.transport.is_closing():
            self._holds_back = True
            self.flow.pause_reading()
            return
        self._holds_back = False
        super().on_response_complete()
        self._rest_if_done()

    def _rest_if_done(self) -> None:
        done = self._arrival is None and self.cycle is not None and self.cycle.response_complete
        if done and not self._holds_back and not self.transport.is_closing():
            self._of_server.rest(self)

    # ---- what all connections of a server tell this one

    def give_way(self) -> None:
        self._metrics.reject("connections_full")
        self._outbox.abort()

    def head_overdue(self) -> None:
        if self._in_head:
            self._turn_away(timed_out("the head of the request did not come in time", "head_timeout"))
        else:
            self._metrics.reject("head_timeout")
            self._outbox.abort()

    def check_body(self) -> None:
        arrival = self._arrival
        assert arrival is not None, "a body that comes has one"
        if self.flow.read_paused:
            arrival.renew()
        elif arrival.overdue:
            arrival.refuse(timed_out("the body of the request came too slowly", "body_timeout"))

    def _stop_body(self) -> None:
        """Wake whoever reads the body, to find that it is refused; end a connection whose answer is under way."""
        self._of_server.sent(self)
        if self.cycle.response_started:
            assert self._arrival is not None and self._arrival.refusal is not None
            self._rejected(code_of(self._arrival.refusal))
            self._outbox.abort()
        else:
            self.cycle.keep_alive = False
            self.cycle.message_event.set()

    # ---- what is answered here

    def send_400_response(self, msg: str) -> None:
        self._metrics.malformed(400)
        self._warn("not a valid HTTP request")
        super().send_400_response(msg)

    def _turn_away(self, refusal: Refusal) -> None:
        """Answer what never became a request, and close."""
        self._warn(refusal.message)
        if self.cycle is not None and not self.cycle.response_complete:
            self._rejected(code_of(refusal))
            self._outbox.abort()
            return
        status, request_id = status_of(refusal), secrets.token_hex(12)
        body = msgspec.json.encode(body_of(refusal, request_id))
        head = b"content-type: application/json\r\ncontent-length: %d\r\nx-request-id: %s\r\nconnection: close\r\n\r\n"
        self._metrics.malformed(status)
        self._metrics.reject(code_of(refusal))
        self.transport.write(STATUS_LINE[status] + head % (len(body), request_id.encode()) + body)
        self.transport.close()

    def _rejected(self, reason: str) -> None:
        """Count it, once: with the request that is under way, or by itself."""
        if self.cycle is None or self.cycle.response_complete:
            self._metrics.reject(reason)
        else:
            tell_error(cast(Any, self.cycle.scope), reason)

    def _unsupported_upgrade_warning(self) -> None:
        self._warn("an upgrade to another protocol, which is ignored")

    def _warn(self, what: str) -> None:
        left_out = self._bound.take()
        if left_out is not None:
            others = f" ({left_out} such lines were left out before)" if left_out else ""
            log.warning("%s%s", what, others, extra={"fields": {"client": address_of(self.client)}})


class Protocols:
    """Makes the connections of one server, which share their bounds, their counters and their lines in the log."""

    def __init__(self, connections: Connections, metrics: Metrics) -> None:
        self._connections = connections
        self._metrics = metrics
        self._bound = Bound(LINES, SECONDS)

    def __call__(self, *args: Any, **kwargs: Any) -> Protocol:
        """As uvicorn makes one."""
        return Protocol(*args, connections=self._connections, metrics=self._metrics, bound=self._bound, **kwargs)
