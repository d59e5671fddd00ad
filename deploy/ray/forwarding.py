"""What travels between the ingress and a replica: one request, then its answer in pieces."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol

Headers = list[tuple[bytes, bytes]]  # names in lower case

# Of one connection, not of what it carries (RFC 9110, 7.6.1), or made anew on the way.
_OF_A_CONNECTION = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer transfer-encoding "
    b"upgrade expect".split()
)
_OF_THE_WAY = frozenset(b"host content-length forwarded x-forwarded-for x-forwarded-proto x-forwarded-host".split())
# Serve's proxy adds both by itself, and the request's id on every answer.
_OF_THE_PROXY = frozenset(b"date server x-request-id".split())


@dataclass(slots=True, kw_only=True)
class ForwardedRequest:
    """One request as a replica gets it. The router reads it before it leaves the ingress's process, and notes there."""

    method: bytes
    target: bytes  # path and query as the client wrote them
    headers: Headers
    body: bytes = b""
    digest: bytes = b""  # of what a replica may have cached; b"": any replica is as good
    avoid: str = ""  # the replica that failed it
    n_others: int = -1  # beside that one or, of a first try, the one that gets it; -1: the router has not looked


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    headers: Headers

    @property
    def streams(self) -> bool:
        """Whether events come, which a client reads one by one."""
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers)


Piece = str | Head | bytes  # the id of the replica that took the request, once; then a head, once; then the body


class ReplicaFailed(Exception):
    """The replica, or its server, went away before the answer was complete."""


class Replicas(Protocol):
    """The replicas as the ingress asks them."""

    def forward(self, request: ForwardedRequest) -> AsyncGenerator[Piece, None]:
        """The answer of one replica. Raises ReplicaFailed; closed early, the replica's server sees its client leave."""

    async def ask_all(self, request: ForwardedRequest) -> Sequence[tuple[str, Head, bytes]]:
        """The answer of each replica that gives one, by its id."""


def to_replica(headers: Headers, client: str, body: bytes) -> Headers:
    """A client's headers as the server of a replica takes them: it knows itself as localhost alone.

    Serve's proxy leaves the blanks around a value (RFC 9110, 5.5) in it, with which nothing could be sent on.
    """
    dropped = _OF_A_CONNECTION | _OF_THE_WAY
    kept = [(name, value.strip(b" \t")) for name, value in headers if name not in dropped]
    own = [(b"host", b"localhost"), (b"x-forwarded-for", client.encode("latin-1", "replace"))]
    return [*own, *kept, (b"content-length", b"%d" % len(body))] if body else [*own, *kept]


def to_client(headers: Headers) -> Headers:
    """A server's headers as the ingress hands them on."""
    return [pair for pair in headers if pair[0] not in _OF_A_CONNECTION and pair[0] not in _OF_THE_PROXY]
