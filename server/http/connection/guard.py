"""One connection: bounds on what its client sends, withholds and leaves unread, around uvicorn's reader of HTTP.

A guard sees bytes, time, and what the application tells it of its request: that the head is read, the body, that the
answer begins and ends. It parses nothing itself.
"""

import asyncio
import contextlib
import time

import h11
from h11._receivebuffer import ReceiveBuffer
from starlette.requests import ClientDisconnect

from server.http.connection.bad_requests import BadRequests
from server.http.connection.connections import LEAST_READ, MOST_UNPARSED, READ, Connections, State
from server.http.connection.request_body import RequestBody
from server.http.connection.send_buffer import SendBuffer
from server.http.errors import code_of
from server.request_context import RequestContext
from server.requests.refusal import Refusal, head_too_large, head_too_long, timed_out, unavailable

PIECE = 1 << 15  # bytes parsed at once, where those before were cheap; at worst some 22 ms
MOST_LINES = 512  # of a head: twice the fields that the application takes
SMALL = 1 << 12  # the same after dear ones: at worst 3 ms, for chunks of one byte each
CHEAP_SECONDS = 0.0005  # of parsing, after which a connection waits for its next turn


class WholeLines(ReceiveBuffer):
    """h11's bytes of a connection, whose lines are those of RFC 9112 alone.

    Each line of a head or a trailer ends with CR LF (2.2) and does not go on in the next one (5.2); nothing stands
    behind the size of a chunk (7.1). h11 takes more, and has no setting that refuses it; what stands in front of this
    server may read it otherwise.
    """

    def maybe_extract_lines(self) -> list[bytearray] | None:
        had = len(self)
        lines: list[bytearray] | None = super().maybe_extract_lines()
        if lines is None:
            return None
        left = had - len(self) - 2  # the blank one
        for line in lines:
            left -= len(line) + 2
            if line.startswith((b" ", b"\t")):
                raise h11.RemoteProtocolError("a line of the head goes on in the next one")
        if left:  # a bare LF is one byte
            raise h11.RemoteProtocolError("a line of the head ends without CR")
        return lines

    def maybe_extract_next_line(self) -> bytearray | None:
        """The line in front of a chunk."""
        line: bytearray | None = super().maybe_extract_next_line()
        if line is not None and line.endswith((b" \r\n", b"\t\r\n")):
            raise h11.RemoteProtocolError("a blank stands behind the size of a chunk")
        return line


class Guard(asyncio.BufferedProtocol):
    """What asyncio calls for one connection. uvicorn's protocol gets its bytes from here, and writes to `sends`."""

    def __init__(self, connections: Connections, bad_requests: BadRequests) -> None:
        self.http: asyncio.Protocol
        self.sends: SendBuffer
        self.fits: bool | None = None  # False: it is one too many; None: it is not counted yet
        self.spent = 0.0
        self.state: State = "answer"
        self.begun = False  # the answer to its request
        self.closes_after = False  # that is its last one
        self.received = 0.0  # when the first byte of its request came, by time.monotonic()
        self._transport: asyncio.Transport
        self._connections = connections
        self._max_head = connections.config.max_head_bytes
        self._bad_requests = bad_requests
        self._request: RequestContext | None = None  # that is not answered yet
        self._body: RequestBody  # of the last one
        self._unparsed = b""  # the rest of what was read, at most twice what is read at once
        self._queued = False  # for a turn
        self._piece = PIECE // 2  # bytes that are parsed next
        self._reads = True  # from its transport
        self._wanted = True  # by whoever reads HTTP
        self._head = self._lines = 0  # bytes and line ends of a head that is not whole
        self._heard = asyncio.Event()  # the client has taken everything, or the connection is gone
        self._gone = asyncio.Event()

    # ---- the transport's side

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.sends = SendBuffer(transport, self._connections.unread, self)
        if self.fits is None:
            self.fits = self._connections.enter(self)
        self.http.connection_made(self.sends)
        self.sends.open()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self)
        self._keep(b"")
        self.sends.drop()
        self.http.connection_lost(None)  # after an error uvicorn would leave a timer that holds the connection
        self._gone.set()
        if self._request is not None:
            self._body.left = True
        self._heard.set()

    def pause_writing(self) -> None:  # nobody waits for a slow reader: see the send buffer
        self.sends.pause_writing()

    def resume_writing(self) -> None:
        self.sends.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        room = MOST_UNPARSED - self._connections.unparsed
        return self._connections.memory[: max(LEAST_READ, min(READ, room))]

    def buffer_updated(self, nbytes: int) -> None:
        if self.sends.ending:
            return
        if self._request is None:
            if self.state == "rest":
                self._connections.becomes(self, "head")
            if not self._head:
                self.received = time.monotonic()
        self._keep(self._unparsed + bytes(self._connections.memory[:nbytes]))
        if len(self._unparsed) <= SMALL and self._may_parse() and self._connections.at_leisure:
            self.turn()
        else:
            self.read_on()

    # ---- reading and parsing

    def _head_room(self) -> int:
        """How many more bytes in a row may belong to no body: to a head, or to what surrounds a body and its chunks.

        None, unless a head turns out to be whole: the application tells so a moment later.
        """
        if self._lines > MOST_LINES:
            return 0
        return self._max_head - (self._head if self._request is None else self._body.overhead)

    def _may_parse(self) -> int:
        """How many bytes of what was read.

        Nothing of a further request is parsed while one is answered, or before its answer is taken.
        """
        answers = self._request is not None and self._body.whole
        if answers or not self._wanted or self.sends.held or self.sends.ending:
            return 0
        return max(0, min(self._piece, self._head_room()))

    def turn(self) -> None:
        """Parse pieces, until one of them was dear."""
        self._queued, begun = False, time.perf_counter()
        while self._unparsed and (n := self._may_parse()):
            piece = self._unparsed[:n]
            self._keep(self._unparsed[n:])
            if self._request is None:
                self._head += len(piece)
                self._lines += piece.count(b"\n")
            else:
                self._body.took(len(piece))
            try:
                self.http.data_received(piece)
            except h11.ProtocolError:  # it would answer, and an answer is under way
                self.cut("malformed")
            if self.sends.ending:
                self._bad_requests.malformed(self._transport)
                return
            if time.perf_counter() - begun >= CHEAP_SECONDS:
                self._piece = SMALL
                break
            self._piece = min(PIECE, 4 * self._piece)
        if self._head_room() <= 0:  # it is looked at after whatever the pieces have woken
            asyncio.get_running_loop().call_soon(self._check_head)
        self.read_on()

    def read_on(self, wanted: bool | None = None) -> None:
        """Go on with what was read, and read more once nothing of it is left. wanted: by uvicorn, from now on."""
        if wanted is not None:
            self._wanted = wanted
        if self.sends.ending:
            return
        reads = self._wanted
        if self._unparsed:
            may_parse = self._may_parse() > 0
            if may_parse and not self._queued:
                self._queued = True
                self._connections.queue(self)
            reads = may_parse and len(self._unparsed) <= READ
        if reads != self._reads:
            self._reads = reads
            (self._transport.resume_reading if reads else self._transport.pause_reading)()

    def was_heard(self) -> None:
        """The client has taken everything: the next request begins, or it owes the head of one, or rests."""
        self._heard.set()
        if self._request is None and not self._head and not self.sends.ending:
            if self.state in ("body", "answer") or (self.state == "rest" and self._unparsed):
                self._connections.becomes(self, "head" if self._unparsed else "rest")
        self.read_on()

    def _check_head(self) -> None:
        if self._head_room() > 0:
            self.read_on()
        elif not self.sends.ending:
            long = self._lines > MOST_LINES
            self._turn_away(head_too_long(MOST_LINES) if long else head_too_large(self._max_head))

    def _keep(self, data: bytes) -> None:
        self._connections.unparsed += len(data) - len(self._unparsed)
        self._unparsed = data

    def closes(self) -> None:
        """With TLS a client says that it has heard the end; it has as long for it as for a head."""
        self._connections.becomes(self, "head")

    # ---- what the application tells

    async def asked(self, request: RequestContext, body: RequestBody) -> None:
        """The head of a request is whole. Returns once the client has taken the answer before it.

        Raises ClientDisconnect where what followed the head has ended the connection.
        """
        if self.sends.is_closing():
            await self._gone.wait()  # or uvicorn would miss an answer
            raise ClientDisconnect
        self._request, self._body = request, body
        self.begun, self._head, self._lines = False, 0, 0
        self._connections.becomes(self, "answer" if body.whole else "body", body)
        if self.fits is False:
            body.refusal = unavailable("this server has as many connections as it takes", "connections_full")
            self.closes_after = True
        while self.sends.held and not self.sends.ending:
            self._heard.clear()
            await self._heard.wait()
        self.read_on()

    async def drain(self) -> None:
        """Before the end of an answer: read what is left of the request's body, and drop it."""
        body = self._body
        with contextlib.suppress(Refusal):  # the connection is cut then
            while not (body.whole or body.refusal or self.closes_after):
                await body.receive(drop=True)

    def ended(self) -> None:
        """The last byte of the answer is written."""
        self._request, self.begun = None, False
        self.received = time.monotonic()
        if self.sends.held:
            self.read_on()
        else:
            self.was_heard()

    def body_ended(self) -> None:
        """It is whole, or refused."""
        if not self.sends.ending:
            self._connections.becomes(self, "answer")
        if self._body.refusal is not None:
            self.closes_after = True
            if self.begun:
                self.cut(code_of(self._body.refusal))

    # ---- what all connections of a server tell this one

    def give_way(self) -> None:
        if self.sends.ending:
            self.abort()
        elif self._request is None:
            self.cut("connections_full")
        else:
            self._refuse_body(unavailable("others need this connection, whose body came slowly", "connections_full"))

    def rested(self) -> None:
        """It has asked for nothing for long enough."""
        self.sends.close()

    def head_overdue(self) -> None:
        if self.sends.ending:
            self.abort()
        elif self._head:
            self._turn_away(timed_out("the head of the request did not come in time", "head_timeout"))
        else:
            self.cut("head_timeout")

    def check_body(self) -> None:
        if self._unparsed and self.sends.peer_left():
            self.abort()  # before what it has sent is parsed to its end
        elif self._unparsed or not self._wanted or self.sends.held:
            self._body.renew()
        elif self._body.overdue:
            self._refuse_body(timed_out("the body of the request came too slowly", "body_timeout"))

    def abort(self) -> None:
        self._keep(b"")
        self.sends.abort()

    def cut(self, reason: str) -> None:
        """Close at once. It is counted with the request that is under way, or by itself."""
        if self._request is None:
            self._bad_requests.rejected(reason)
        else:
            self._request.error = reason
        self.abort()

    # ---- what is refused

    def _refuse_body(self, refusal: Refusal) -> None:
        if self._request is None or self.begun:
            self.cut(code_of(refusal))
        else:
            self._body.refuse(refusal)

    def _turn_away(self, refusal: Refusal) -> None:
        """Answer what never became a request, and close."""
        if self._request is not None:
            self._refuse_body(refusal)
            return
        self.sends.write(self._bad_requests.answer(refusal, self._transport))
        self.sends.close()
