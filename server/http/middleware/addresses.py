"""Which names and addresses a request may be sent to, and which client an address, or a proxy's header, stands for."""

import ipaddress
from collections.abc import Collection, Sequence

from server.requests.refusal import forbidden, invalid_request
from tokenization.chat.errors import shortened

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})  # names of every machine for itself; all of 127.0.0.0/8 are
UNKNOWN_CLIENT = "unknown"
NETWORK_BITS = 64  # of an IPv6 address: what one client is given, and may choose from


def check_host(given: Sequence[bytes], allowed: Collection[str] | None, http_version: str) -> None:
    """Raise Refusal: a 400 for a request without a Host or with two, a 403 for a name that is not this server's.

    A page whose own name leads to 127.0.0.1 (DNS rebinding) is of one origin with the server there, and its script
    could read every answer. What it cannot choose is the name: its browser sends the page's own.

    allowed: names in lower case, LOCAL among them; None: any name will do, as for probes, which ask by whatever
    address they have.
    """
    if len(given) != 1:
        if not given and http_version == "1.0":
            return  # which has no such header; no browser speaks it
        raise invalid_request(f"a request has one Host, this one has {len(given)}", code="invalid_host")
    if allowed is None:
        return
    host = given[0].decode("latin-1").strip().lower()
    name, colon, port = host.rpartition(":")
    if not colon or (port and not (port.isascii() and port.isdigit())):
        name = host
    name = name.removesuffix(".")
    if name not in allowed and not is_loopback(name):
        raise forbidden(
            f"this server is not called {shortened(name)!r}: --allowed-host makes it answer to another name than "
            "localhost or a loopback address",
            "host_not_allowed",
        )


def is_loopback(name: str) -> bool:
    """Whether it is an address of 127.0.0.0/8, or [::1] in any spelling."""
    bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    if (":" in bare) != (bare != name):
        return False  # only an IPv6 address stands in brackets, and only there
    try:
        return ipaddress.ip_address(bare).is_loopback
    except ValueError:
        return False


def client_of_address(client: tuple[str, int] | None) -> str:
    """Who asks without a key, as far as the workers' time is shared. A proxy's header may have named it: anything."""
    try:
        address = ipaddress.ip_address((client or ("",))[0].partition("%")[0])
    except ValueError:
        return UNKNOWN_CLIENT
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
    return str(address)
