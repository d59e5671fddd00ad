"""By which names a server may be called: the Host of a request, of which there is exactly one. Pure ASGI."""

import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Receive, Scope, Send

from server.http.errors import error_response
from server.http.middleware.keys import OPEN_PATHS
from server.requests.refusal import Refusal, forbidden, invalid_request
from tokenization.chat.errors import shortened


class OneHost:
    """A 400 for a request without a Host or with two, a 403 for a name that is not this server's.

    A page whose own name leads to 127.0.0.1 (DNS rebinding) is of one origin with the server there, and its script
    could read every answer. What it cannot choose is the name: its browser sends the page's own.
    """

    def __init__(self, app: ASGIApp, allowed: Collection[str] | None = None) -> None:
        """allowed: names beside those of this machine for itself, in lower case; None: any name will do."""
        self._app = app
        self._allowed = None if allowed is None else frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._refusal(scope) if scope["type"] == "http" else None
        if error is None:
            await self._app(scope, receive, send)
        else:
            await error_response(error, scope["state"]["request_id"])(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(given) != 1:
            if not given and scope.get("http_version") == "1.0":
                return None  # which has no such header; no browser speaks it
            return invalid_request(f"a request has one Host, this one has {len(given)}", code="invalid_host")
        if self._allowed is None or scope["path"] in OPEN_PATHS:  # probes ask by whatever address they have
            return None
        name = host_name(given[0])
        if name in self._allowed or is_local(name):
            return None
        return forbidden(
            f"this server is not called {shortened(name)!r}: --allowed-host makes it answer to another name than "
            "localhost or a loopback address",
            "host_not_allowed",
        )


def host_name(host: str) -> str:
    """The Host's name or address in lower case, without a port and a dot at its end; IPv6 keeps its brackets."""
    name, colon, port = host.strip().lower().rpartition(":")
    if not colon or (port and not (port.isascii() and port.isdigit())):
        name = host.strip().lower()
    return name.removesuffix(".")


def is_local(name: str) -> bool:
    """Whether it means this machine on every machine: localhost, 127.0.0.0/8, [::1]."""
    if name == "localhost":
        return True
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if (":" in bare) != (bare != name):
        return False  # only an IPv6 address stands in brackets, and only there
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False
