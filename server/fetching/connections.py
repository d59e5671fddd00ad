"""Connections of one fetch: a name is resolved once, all its addresses are checked, one of these is connected to."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from ipaddress import IPv4Address, IPv6Address, ip_address

import httpcore2

from server.fetching.addresses import AllowedNetworks
from server.fetching.target import ForbiddenUrl

SocketOption = tuple[int, int, int] | tuple[int, int, bytes | bytearray] | tuple[int, int, None, int]


LIKE_SECONDS = 0.5  # in which most resolvers say that there is a name, or none


class NoSuchHost(Exception):
    """Its name could not be resolved to an address that its client may know of."""


class CheckedConnections(httpcore2.AsyncNetworkBackend):
    """httpcore2's sockets, for one medium over all its redirects: a name is what it was at first."""

    def __init__(
        self, networks: AllowedNetworks, resolvers: Executor, seconds: float, named: Callable[[str], bool]
    ) -> None:
        """resolvers: its threads look names up, and may wait for that; seconds: for all addresses of a host; named:
        whether the operator named a host, and not only all of them: what is private of others no answer tells.
        """
        self._named = named
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
        """Raises NoSuchHost, also for a name that leads to where nothing is fetched from, and is not the operator's.

        A client could else ask which private names there are. Both take the same time, where a resolver is quick.
        """
        begun, loop = time.monotonic(), asyncio.get_running_loop()

        def look_up() -> tuple[IPv4Address | IPv6Address, ...]:
            found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            return tuple(dict.fromkeys(ip_address(where[0]) for *_, where in found))

        try:
            found = await loop.run_in_executor(self._resolvers, look_up)
        except (OSError, UnicodeError):
            found = ()
        named = self._named(host)
        if found and (named or all(map(self._networks.allow, found))):
            return found
        if not named:
            await asyncio.sleep(max(0.0, begun + LIKE_SECONDS - time.monotonic()))
        raise NoSuchHost
