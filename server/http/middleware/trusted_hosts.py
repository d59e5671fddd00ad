"""By which names a server may be called: the Host of a request, of which there is exactly one."""

import ipaddress
from collections.abc import Collection, Sequence

from server.requests.refusal import forbidden, invalid_request
from tokenization.chat.errors import shortened


def check_host(given: Sequence[bytes], allowed: Collection[str] | None, http_version: str) -> None:
    """Raise Refusal: a 400 for a request without a Host or with two, a 403 for a name that is not this server's.

    A page whose own name leads to 127.0.0.1 (DNS rebinding) is of one origin with the server there, and its script
    could read every answer. What it cannot choose is the name: its browser sends the page's own.

    allowed: names beside those of this machine for itself, in lower case; None: any name will do, as for probes, which
    ask by whatever address they have.
    """
    if len(given) != 1:
        if not given and http_version == "1.0":
            return  # which has no such header; no browser speaks it
        raise invalid_request(f"a request has one Host, this one has {len(given)}", code="invalid_host")
    if allowed is None:
        return
    name = host_name(given[0].decode("latin-1"))
    if name not in allowed and not is_local(name):
        raise forbidden(
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
