"""Who asks, as far as the workers' time is shared: a key where one came, else an address."""

import ipaddress

from starlette.types import Scope

KEY = "key"  # in the state of a request's scope: the digest of the key that it came with; only where keys are asked for
UNKNOWN = "unknown"
NETWORK_BITS = 64  # of an IPv6 address: what one client is given, and may choose from


def client_of(scope: Scope) -> str:
    """The same for all requests of one client. It is shown to nobody."""
    key: str | None = scope["state"].get(KEY)
    return f"key {key}" if key else _network(scope.get("client"))


def _network(client: tuple[str, int] | None) -> str:
    """A proxy's header may have named it, so it may be anything."""
    try:
        address = ipaddress.ip_address((client or ("",))[0].partition("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.ip_network((address, NETWORK_BITS), strict=False))
    return str(address)
