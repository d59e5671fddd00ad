"""One connection: bounds on what its client sends, withholds and leaves unread, around uvicorn's reader of HTTP.

A guard sees bytes, time, and what the application tells it of its request: that the head is read, the body, that the
answer begins and ends. It parses nothing itself.
"""

import asyncio
import contextlib
import time

import h11
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from server.http.connection.arrival import ARRIVAL, Arrival
from server.http.connection.connections import READ, Connections
from server.http.connection.outbox import Outbox
from server.http.connection.strays import Strays
from server.http.errors import code_of
from server.logs.access import tell_error
from server.requests.refusal import Refusal, head_too_large, head_too_long, timed_out, unavailable

CLOSE = (b"connection", b"close")
GUARD = "guard"  # in the state of a request's scope
PIECE = 1 << 15  # bytes parsed at once, where those before were cheap; at worst some 22 ms
MOST_LINES = 512  # of a head: twice the fields that the application takes
SMALL = 1 << 12  # the same after dear ones: at worst 3 ms, for chunks of one byte each
CHEAP_SECONDS = 0.0005  # of parsing, after which a connection waits for its next turn


class Guard(asyncio.BufferedProtocol):
    """What asyncio calls for one connection. uvicorn's protocol gets its bytes from here and writes to the outbox."""

    def __init__(self, connections: Connections, strays: Strays) -> None:
        self.http: asyncio.Protocol
        self.outbox: Outbox
        self.fits: bool | None = None  # False: it is one too many; None: it is not counted yet
        self.spent = 0.0
        self.received = 0.0  # when the first byte of its request came, by time.monotonic()
        self._transport: asyncio.Transport
        self._of_server = connections
        self._max_head = connections.config.max_head_bytes
        self._strays = strays
        self._request: Scope | None = None  # that is not answered yet
        self._begun = False  # its answer
        self._closes = False  # and is the last one
        self._body: Arrival | None = None  # of the last request
        self._unparsed = b""  # the rest of what was read, at most twice what is read at once
        self._queued = False  # for a turn
        self._piece = PIECE // 2  # bytes that are parsed next
        self._reads = True  # from its transport
        self._wanted = True  # by whoever reads HTTP
        self._head = self._lines = 0  # bytes and line ends of a head that is not whole
        self._emptied = asyncio.Event()  # the outbox, or the connection is gone
        self._gone = asyncio.Event()

    # ---- the transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.outbox = Outbox(transport, self._of_server.unread, self)
        if self.fits is None:
            self.fits = self._of_server.enter(self)
        self.http.connection_made(self.outbox)
        self.outbox.open()

    def connection_lost(self, exc: Exception | None) -> None:
        self._of_server.leave(self)
        self._keep(b"")
        self.outbox.drop()
        self.http.connection_lost(None)  # after an error uvicorn would leave a timer that holds the connection
        self._gone.set()
        if self._body is not None:
            self._body.left = True
        self._emptied.set()

    def pause_writing(self) -> None:  # nobody waits for a slow reader: see the outbox
        self.outbox.pause_writing()

    def resume_writing(self) -> None:
        self.outbox.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._of_server.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self.outbox.is_closing():
            return
        if self._request is None:
            self._of_server.spoke(self)
            if not self._head:
                self.received = time.monotonic()
        self._keep(self._unparsed + bytes(self._of_server.buffer()[:nbytes]))
        if len(self._unparsed) <= SMALL and self._may_parse and self._of_server.at_leisure:
            self._parse()
        else:
            self.read_on()

    # ---- reading and parsing

    @property
    def _framing(self) -> int:
        """Bytes in a row that belong to no body: of a head, of what surrounds a body and its chunks."""
        return self._head if self._request is None or self._body is None else self._body.overhead

    @property
    def _too_much(self) -> bool:
        """Unless a head turns out to be whole: the application tells so a moment later."""
        return self._framing >= self._max_head or self._lines > MOST_LINES

    @property
    def _may_parse(self) -> bool:
        """Nothing of a further request is parsed while one is answered, or before its answer is taken."""
        busy = self._request is not None and (self._body is None or self._body.whole)
        return self._wanted and not busy and not self.outbox.held and not self._too_much

    def turn(self) -> None:
        self._queued = False
        if not self.outbox.is_closing():
            self._parse()

    def _parse(self) -> None:
        """Pieces, until one of them was dear."""
        begun = time.perf_counter()
        while self._unparsed and self._may_parse and not self.outbox.is_closing():
            n = min(self._piece, self._max_head - self._framing)
            piece = self._unparsed[:n]
            self._keep(self._unparsed[n:])
            if self._request is None or self._body is None:
                self._head += len(piece)
                self._lines += piece.count(b"\n")
            else:
                self._body.took(len(piece))
            try:
                self.http.data_received(piece)
            except h11.ProtocolError:  # it would answer, and an answer is under way
                self.cut("malformed")
            cheap = time.perf_counter() - begun < CHEAP_SECONDS
            self._piece = min(PIECE, 4 * self._piece) if cheap else SMALL
            if not cheap:
                break
        if self.outbox.is_closing():
            self._strays.malformed(self._transport)
            return
        if self._too_much:  # it is looked at after whatever the pieces have woken
            asyncio.get_running_loop().call_soon(self._check_head)
        self.read_on()

    def read_on(self, wanted: bool | None = None) -> None:
        """Go on with what was read, and read more once nothing of it is left. wanted: by uvicorn, from now on."""
        if wanted is not None:
            self._wanted = wanted
        if self.outbox.is_closing():
            return
        if not self.outbox.held:
            self._has_been_heard()
        if self._unparsed and self._may_parse and not self._queued:
            self._queued = True
            self._of_server.queue(self)
        reads = self._wanted and (not self._unparsed or (self._may_parse and len(self._unparsed) <= READ))
        if reads != self._reads:
            self._reads = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def _check_head(self) -> None:
        if not self._too_much:
            self.read_on()
        elif not self.outbox.is_closing():
            few = self._framing < self._max_head
            self._turn_away(head_too_long(MOST_LINES) if few else head_too_large(self._max_head))

    def _has_been_heard(self) -> None:
        """The client has taken everything: the next request begins, or it owes the head of one, or rests."""
        self._emptied.set()
        if self._request is None and not self._head:
            self._of_server.rest(self)
            if self._unparsed:
                self._of_server.spoke(self)

    def _keep(self, data: bytes) -> None:
        self._of_server.unparsed += len(data) - len(self._unparsed)
        self._unparsed = data

    def said_all(self) -> None:
        """With TLS a client says that it has heard the end; it has as long for it as for a head."""
        self._of_server.closes(self)

    # ---- what the application tells

    async def asked(self, scope: Scope, *, has_body: bool) -> None:
        """The head of a request is whole. Returns once the client has taken the answer before it.

        Raises ClientDisconnect where what followed the head has ended the connection.
        """
        if self.outbox.is_closing():
            await self._gone.wait()  # or uvicorn would miss an answer
            raise ClientDisconnect
        self._request, self._begun, self._head, self._lines = scope, False, 0, 0
        body = self._body = Arrival(self._of_server.config, self._of_server.clock, self._on_body_end)
        scope["state"][ARRIVAL] = body
        self._of_server.asked(self, body)
        if self.fits is False:
            body.refusal = unavailable("this server has as many connections as it takes", "connections_full")
            self._closes = True
        if not has_body:
            body.end()
        while self.outbox.held and not self.outbox.is_closing():
            self._emptied.clear()
            await self._emptied.wait()
        self.read_on()

    @property
    def owes_body(self) -> bool:
        """Whether something of the request's body is left."""
        return self._body is not None and not self._body.whole

    def begins(self) -> list[tuple[bytes, bytes]]:
        """The first byte of the answer is about to be written; what its head must say besides."""
        self._begun = True
        return [CLOSE] if self._closes else []

    async def drain(self, receive: Receive) -> None:
        """Before the end of an answer: read what is left of the request's body, and drop it."""
        body = self._body
        with contextlib.suppress(Refusal):  # the connection is cut then
            while body is not None and not (body.whole or body.refusal or self._closes):
                await body.next(receive)

    def ended(self) -> None:
        """The last byte of the answer is written."""
        self._request, self._begun = None, False
        self.received = time.monotonic()
        self.read_on()

    # ---- what all connections of a server tell this one

    def give_way(self) -> None:
        if self.outbox.is_closing():
            self.abort()
        elif self._request is None:
            self.cut("connections_full")
        else:
            self._refuse_body(unavailable("others need this connection, whose body came slowly", "connections_full"))

    def rested(self) -> None:
        """It has asked for nothing for long enough."""
        self.outbox.close()

    def head_overdue(self) -> None:
        if self.outbox.is_closing():
            self.abort()
        elif self._head:
            self._turn_away(timed_out("the head of the request did not come in time", "head_timeout"))
        else:
            self.cut("head_timeout")

    def check_body(self) -> None:
        assert self._body is not None, "a body that comes has one"
        if self._unparsed and self.outbox.peer_left():
            self.abort()  # before what it has sent is parsed to its end
        elif self._unparsed or not self._wanted or self.outbox.held:
            self._body.renew()
        elif self._body.overdue:
            self._refuse_body(timed_out("the body of the request came too slowly", "body_timeout"))

    def abort(self) -> None:
        self._keep(b"")
        self.outbox.abort()

    def cut(self, reason: str) -> None:
        """Close at once. It is counted with the request that is under way, or by itself."""
        if self._request is None:
            self._strays.rejected(reason)
        else:
            tell_error(self._request, reason)
        self.abort()

    # ---- what is refused

    def _refuse_body(self, refusal: Refusal) -> None:
        if self._request is None or self._begun:
            self.cut(code_of(refusal))
        elif self._body is not None:
            self._body.refuse(refusal)

    def _on_body_end(self) -> None:
        assert self._body is not None
        self._of_server.sent(self)
        if self._body.refusal is not None:
            self._closes = True
            if self._begun:
                self.cut(code_of(self._body.refusal))

    def _turn_away(self, refusal: Refusal) -> None:
        """Answer what never became a request, and close."""
        if self._request is not None:
            self._refuse_body(refusal)
            return
        self.outbox.write(self._strays.answer(refusal, self._transport))
        self.outbox.close()
