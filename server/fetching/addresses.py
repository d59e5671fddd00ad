"""Which addresses media may come from: globally routable unicast, and what the operator opens by name."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, ip_network

# Of the IPv4 Special-Purpose Address Registry of IANA (RFC 6890 and later) every block, also those that it calls
# globally reachable; behind them multicast (RFC 5771).
OF_IPV4 = tuple(
    ip_network(block)
    for block in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4", "224.0.0.0/4",
    )
)  # fmt: skip
# All that IANA has given out as global unicast (RFC 4291). Outside lie ::, ::1, mapped addresses, NAT64, unique local
# and link-local ones, multicast, 100::/64 and 5f00::/16.
GLOBAL_IPV6 = ip_network("2000::/3")
# Inside it: the IPv6 Special-Purpose Address Registry. 2001::/23 holds Teredo, ORCHID, benchmarks and anycast.
OF_IPV6 = tuple(
    ip_network(block)
    for block in ("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")
)  # fmt: skip


class AllowedNetworks:
    """Says of an address whether a connection to it may be begun."""

    def __init__(self, opened: Sequence[str]) -> None:
        """opened: networks in CIDR form that are allowed beside what is globally routable."""
        self._opened = tuple(map(ip_network, opened))

    def allow(self, address: IPv4Address | IPv6Address) -> bool:
        if any(address.version == network.version and address in network for network in self._opened):
            return True
        if isinstance(address, IPv4Address):
            return not any(address in block for block in OF_IPV4)
        # A zone (fe80::1%eth0) says an interface of this machine: no address of others has one.
        inside = address in GLOBAL_IPV6 and address.scope_id is None
        return inside and not any(address in block for block in OF_IPV6)
