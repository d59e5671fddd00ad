"""Connections of one fetch: a name is resolved once, all its addresses are checked, one of these is connected to."""

import asyncio
import socket
from collections.abc import Iterable
from concurrent.futures import Executor
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpcore2

from server.fetching.addresses import AllowedNetworks
from server.fetching.target import ForbiddenUrl

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


class NoSuchHost(Exception):
    """Its name could not be resolved."""


class CheckedConnections(httpcore2.AsyncNetworkBackend):
    """httpcore2's sockets, for one medium over all its redirects: a name is what it was at first."""

    def __init__(self, networks: AllowedNetworks, resolvers: Executor, seconds: float) -> None:
        """resolvers: its threads look names up, and may wait for that; seconds: for all addresses of a host."""
        self._seconds = seconds
        self._networks = networks
        self._resolvers = resolvers
        self._sockets = httpcore2.AnyIOBackend()
        self._pinned: dict[str, tuple[IPv4Address | IPv6Address, ...]] = {}

    async def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None,
        socket_options: Iterable[SocketOption] | None = None,
    ) -> httpcore2.AsyncNetworkStream:  # fmt: skip
        """To the first address that answers. Raises ForbiddenUrl, NoSuchHost and httpcore2's errors."""
        failed: Exception = NoSuchHost()
        addresses = await self._addresses(host)
        each = self._seconds / max(1, len(addresses))  # one that does not answer leaves time for the others
        for address in addresses:
            try:
                # A number: nothing resolves it again.
                return await self._sockets.connect_tcp(str(address), port, each, local_address, socket_options)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def sleep(self, seconds: float) -> None:
        await self._sockets.sleep(seconds)

    async def _addresses(self, host: str) -> tuple[IPv4Address | IPv6Address, ...]:
        """All of them may be connected to. Raises ForbiddenUrl, NoSuchHost."""
        if host not in self._pinned:
            found: tuple[IPv4Address | IPv6Address, ...]
            try:
                found = (ip_address(host),)
            except ValueError:
                found = await self._resolve(host)
            if not all(map(self._networks.allow, found)):
                raise ForbiddenUrl("the URL leads to an address that is not public (--allowed-media-network)")
            self._pinned[host] = found
        return self._pinned[host]

    async def _resolve(self, host: str) -> tuple[IPv4Address | IPv6Address, ...]:
        loop = asyncio.get_running_loop()

        def look_up() -> tuple[IPv4Address | IPv6Address, ...]:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(ip_address(where[0]) for *_, where in found))

        try:
            return await loop.run_in_executor(self._resolvers, look_up)
        except (OSError, UnicodeError):
            raise NoSuchHost from None
