"""Who asks, as far as the workers' time is shared: a key where one came, else an address."""

import ipaddress

UNKNOWN = "unknown"
NETWORK_BITS = 64  # of an IPv6 address: what one client is given, and may choose from


def client_of_key(digest: str) -> str:
    """The same for all requests of one client, as is the other name. It is shown to nobody."""
    return f"key {digest}"


def client_of_address(client: tuple[str, int] | None) -> str:
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
