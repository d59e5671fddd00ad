"""One medium by http(s): from its URL over its redirects to its bytes, each hop checked, everything bounded."""

import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import anyio
import httpcore2

from configs.fetch import EVERY_HOST, FetchConfig
from server.fetching.addresses import AllowedNetworks
from server.fetching.connections import CheckedConnections, NoSuchHost
from server.fetching.messages import PIECE_BYTES
from server.fetching.target import FetchTarget, ForbiddenUrl, allowed_by, read_target

MAX_REDIRECTS = 3
TURN_CHUNKS = 64  # of a body, after which other fetches have their turn
REDIRECTS = frozenset((301, 302, 303, 307, 308))
Headers = Sequence[tuple[bytes, bytes]]
Take = Callable[[bytes], Awaitable[None]]  # what becomes of the next bytes


class FetchFailed(Exception):
    """The origin gave nothing that can be used. The message goes to the client."""


class TooLarge(Exception):
    """It has more bytes than it may."""


class MediaFetcher:
    """What all fetches of one process share."""

    def __init__(self, config: FetchConfig, user_agent: str, resolvers: Executor) -> None:
        """Raises OSError for certificates that cannot be read."""
        self._config = config
        self._networks = AllowedNetworks(config.networks)
        self._resolvers = resolvers
        self._tls = tls_of(config.ca)
        self._headers = [
            (b"User-Agent", user_agent.encode("ascii")), (b"Accept", b"*/*"), (b"Accept-Encoding", b"identity"),
            (b"Connection", b"close"),
        ]  # fmt: skip

    async def fetch(self, url: str, max_bytes: int, take: Take) -> None:
        """Hand what `url` leads to to `take`, in pieces. Raises ForbiddenUrl, FetchFailed and TooLarge."""
        limit = self._config.seconds
        try:
            with anyio.fail_after(limit):
                await self._fetch(url, max_bytes, take)
        except TimeoutError:
            raise FetchFailed(f"it took more than {limit:g} s") from None
        except NoSuchHost:
            raise FetchFailed("the name of the host cannot be resolved to a public address") from None
        except httpcore2.ConnectError as error:
            if isinstance(error.__context__, ssl.SSLCertVerificationError):
                raise FetchFailed("the host's certificate cannot be verified") from None
            raise FetchFailed("the host does not take the connection") from None
        except httpcore2.ProxyError:
            raise FetchFailed("the proxy refuses it") from None
        except (httpcore2.NetworkError, httpcore2.TimeoutException):
            raise FetchFailed("the connection broke off") from None
        except (httpcore2.ProtocolError, httpcore2.UnsupportedProtocol):
            raise FetchFailed("the host's answer is not whole, or is no HTTP") from None
        except OSError:  # of TLS behind its handshake, too, which the library lets pass
            raise FetchFailed("the connection broke off") from None

    async def _fetch(self, url: str, max_bytes: int, take: Take) -> None:
        target = read_target(url, self._config.domains)
        async with self._pool() as pool:
            for _ in range(MAX_REDIRECTS + 1):
                location = await self._hop(pool, target, max_bytes, take)
                if location is None:
                    return
                try:
                    target = read_target(location, self._config.domains, target)
                except ForbiddenUrl as error:
                    raise ForbiddenUrl(f"it redirects to where nothing is fetched from: {error}") from None
        raise FetchFailed(f"it redirects more than {MAX_REDIRECTS} times")

    def _pool(self) -> httpcore2.AsyncConnectionPool:
        """Of one medium: no connection, and no name, is shared with another one."""
        if self._config.proxy is not None:
            return httpcore2.AsyncHTTPProxy(self._config.proxy, ssl_context=self._tls, max_keepalive_connections=0)
        named = partial(allowed_by, domains=[one for one in self._config.domains if one != EVERY_HOST])
        backend = CheckedConnections(self._networks, self._resolvers, self._config.first_byte_seconds, named)
        return httpcore2.AsyncConnectionPool(self._tls, max_keepalive_connections=0, network_backend=backend)

    async def _hop(
        self, pool: httpcore2.AsyncConnectionPool, target: FetchTarget, max_bytes: int, take: Take
    ) -> str | None:
        """Where it redirects to; None: all of it was taken."""
        # A proxy is told the host inside a URL, where the library writes it as it is.
        bare = ":" not in target.host or self._config.proxy is None
        host = target.host if bare else f"[{target.host}]"
        url = httpcore2.URL(scheme=target.scheme, host=host, port=target.port, target=target.path)
        headers = [(b"Host", target.host_header), *self._headers]
        request = httpcore2.Request("GET", url, headers=headers, extensions={"sni_hostname": target.host})
        limit = self._config.first_byte_seconds
        with anyio.move_on_after(limit) as begun:
            response = await pool.handle_async_request(request)
        if begun.cancelled_caught:
            raise FetchFailed(f"the host did not begin its answer within {limit:g} s")
        try:
            if response.status in REDIRECTS:
                return location_of(response.headers)
            check_head(response.status, response.headers, max_bytes)
            await read_body(response, max_bytes, take)
        finally:
            await response.aclose()
        return None


def tls_of(ca: Path | None) -> ssl.SSLContext:
    """The system's certificates and those in a file, whatever variables say. Raises OSError.

    `ssl.create_default_context` obeys SSL_CERT_FILE, SSL_CERT_DIR and SSLKEYLOGFILE.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    system = ssl.get_default_verify_paths()
    if Path(system.openssl_cafile).is_file():
        context.load_verify_locations(cafile=system.openssl_cafile)
    if Path(system.openssl_capath).is_dir():
        context.load_verify_locations(capath=system.openssl_capath)
    if ca is not None:
        context.load_verify_locations(ca)
    return context


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """Of each header of that name, which is lower case."""
    return [value.strip() for one, value in headers if one.lower() == name]


def location_of(headers: Headers) -> str:
    """Where a redirect leads. Raises FetchFailed."""
    try:
        (location,) = values_of(headers, b"location")
        return location.decode("utf-8")
    except ValueError:  # UnicodeDecodeError, too
        raise FetchFailed("it redirects to nowhere") from None


def check_head(status: int, headers: Headers, max_bytes: int) -> None:
    """Raise FetchFailed, TooLarge for an answer that is not the medium as it is."""
    if status != 200:
        raise FetchFailed(f"the host answers with status {status}")
    if any(value.lower() not in (b"", b"identity") for value in values_of(headers, b"content-encoding")):
        raise FetchFailed("the host compresses it, which was not asked for")
    if any(value.isdigit() and int(value[:20]) > max_bytes for value in values_of(headers, b"content-length")):
        raise TooLarge


async def read_body(response: httpcore2.Response, max_bytes: int, take: Take) -> None:
    """However small its chunks are, `take` gets few pieces. Raises TooLarge, FetchFailed."""
    n, n_chunks, piece = 0, 0, bytearray()
    async for chunk in response.aiter_stream():
        n, n_chunks = n + len(chunk), n_chunks + 1
        if n_chunks % TURN_CHUNKS == 0:
            await anyio.sleep(0)  # of what was read at once no chunk waits by itself
        if n > max_bytes:
            raise TooLarge
        piece += chunk
        if len(piece) >= PIECE_BYTES:
            await take(bytes(piece))
            piece.clear()
    if not n:
        raise FetchFailed("the host's answer is empty")
    if piece:
        await take(bytes(piece))
