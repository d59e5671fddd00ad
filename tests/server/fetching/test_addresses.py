"""The table of addresses against IANA's registries, and against Python's own reading of them."""

import ipaddress
import random

from server.fetching.addresses import AllowedNetworks
from tests.server.tables import each_of

# One address or two of each row of IANA's special-purpose registries (IPv4 and IPv6, 2026), and what is no unicast.
FORBIDDEN = """
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.100.100.200 100.127.255.255 127.0.0.1 127.255.255.254
169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.0.8 192.0.0.9 192.0.0.10 192.0.0.170 192.0.0.192
192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.88.99.2 192.168.0.1 192.175.48.1 198.18.0.1 198.19.255.255
198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.254 255.255.255.255
:: ::1 ::ffff:127.0.0.1 ::ffff:8.8.8.8 ::127.0.0.1 64:ff9b::7f00:1 64:ff9b::808:808 64:ff9b:1::1 100::1 100:0:0:1::1
2001::1 2001:0:4136:e378:8000:63bf:3fff:fdd2 2001:1::1 2001:1::2 2001:1::3 2001:2::1 2001:3::1 2001:4:112::1 2001:10::1
2001:20::1 2001:30::1 2001:db8::1 2002:7f00:1:: 2002:808:808::1 2620:4f:8000::1 3fff::1 5f00::1 fc00::1 fd00:ec2::254
fe80::1 fec0::1 ff02::1 4000::1 e000::1
""".split()
PUBLIC = "1.1.1.1 8.8.8.8 93.184.216.34 100.63.255.255 100.128.0.1 172.32.0.1 192.0.1.1 198.20.0.1 223.255.255.255 \
2606:2800:220:1::34 2a00:1450::1 2001:200::1 2001:4860:4860::8888 2620:4f:8001::1 2400:cb00::1".split()


@each_of("address", FORBIDDEN)
def test_a_special_address_is_none_to_fetch_from(address: str) -> None:
    assert not AllowedNetworks(()).allow(ipaddress.ip_address(address))


@each_of("address", PUBLIC)
def test_a_public_address_is(address: str) -> None:
    assert AllowedNetworks(()).allow(ipaddress.ip_address(address))


def test_nothing_is_allowed_that_python_knows_as_special() -> None:
    rng, networks = random.Random(0), AllowedNetworks(())
    four = [ipaddress.IPv4Address(rng.getrandbits(32)) for _ in range(20_000)]
    six = [ipaddress.IPv6Address((1 << 125) + rng.getrandbits(125)) for _ in range(5_000)]
    addresses: list[ipaddress.IPv4Address | ipaddress.IPv6Address] = [*four, *six]
    n = 0
    for address in addresses:
        if networks.allow(address):
            n += 1
            assert address.is_global and not address.is_multicast, address
    assert n > 15_000


def test_a_network_is_opened_by_its_own_name_alone() -> None:
    networks = AllowedNetworks(("10.1.0.0/16", "fd00:1::/32"))
    for address, allowed in (
        ("10.1.2.3", True), ("10.2.0.1", False), ("::ffff:10.1.2.3", False), ("64:ff9b::a01:203", False),
        ("fd00:1::5", True), ("fd00:2::5", False), ("8.8.8.8", True), ("127.0.0.1", False),
    ):  # fmt: skip
        assert networks.allow(ipaddress.ip_address(address)) == allowed, address


def test_an_address_with_a_zone_is_an_interface_of_this_machine() -> None:
    assert not AllowedNetworks(()).allow(ipaddress.ip_address("2606:2800::1%eth0"))
