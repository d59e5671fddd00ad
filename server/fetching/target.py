"""What a URL names, read once and checked: whoever connects is handed these parts, and never the text again."""

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import httpx2

from configs.fetch import EVERY_HOST, MAX_URL

# Never in a URL (RFC 3986, 2): a backslash is a slash to some readers, and a line break is nothing to others. Letters
# of any language are percent-encoded by the parser, or become Punycode.
_STRANGE = re.compile(r'[\x00-\x20\x7f\\<>"^`{|}]')
_USER = re.compile(r"([a-z][a-z0-9+.-]*:)?//[^/?#]*@", re.IGNORECASE)  # the library drops an empty one
_NAME = re.compile(r"([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class ForbiddenUrl(Exception):
    """The client must name another URL. The message goes to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchTarget:
    """One URL to ask, without credentials and fragment."""

    scheme: Literal["http", "https"]
    host: str  # as it is looked up and stands in Host: lower case, ASCII, an IPv6 address without its brackets
    port: int
    path: bytes  # with the query
    url: httpx2.URL  # what a relative redirect starts from

    @property
    def host_header(self) -> bytes:
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = {"http": 80, "https": 443}[self.scheme]
        return (host if self.port == usual else f"{host}:{self.port}").encode("ascii")


def read_target(text: str, domains: Sequence[str], base: FetchTarget | None = None) -> FetchTarget:
    """base: where a redirect to `text` came from, which may then be relative. Raises ForbiddenUrl."""
    if len(text) > MAX_URL:
        raise ForbiddenUrl(f"the URL has more than {MAX_URL} characters")
    if _STRANGE.search(text):
        raise ForbiddenUrl("the URL holds a character that no URL may have; percent-encode it")
    try:
        url = httpx2.URL(text) if base is None else base.url.join(text)
        host = url.raw_host.decode("ascii").lower().removesuffix(".")
        port = url.port
    except (httpx2.InvalidURL, ValueError):  # UnicodeError, too
        raise ForbiddenUrl("the URL cannot be read") from None
    if url.scheme not in ("http", "https"):
        raise ForbiddenUrl("media are fetched by http and https alone")
    if url.userinfo or "@" in url.netloc.decode("ascii") or _USER.match(text):
        raise ForbiddenUrl("a URL with a user or a password is not fetched")
    if not host or (port is not None and not 0 < port < 1 << 16):
        raise ForbiddenUrl("the URL names no host or no port")
    _check_host(host)
    if not allowed_by(host, domains):
        raise ForbiddenUrl("the server does not fetch from this host (--allowed-media-domain)")
    scheme: Literal["http", "https"] = "https" if url.scheme == "https" else "http"
    return FetchTarget(
        scheme=scheme, host=host, port=port or {"http": 80, "https": 443}[scheme], path=url.raw_path,
        url=url.copy_with(fragment=None),
    )  # fmt: skip


def _check_host(host: str) -> None:
    """A name, or an address in its usual form: 2130706433, 0x7f.1 and 0177.0.0.1 are others' ways to spell one.

    Raises ForbiddenUrl.
    """
    if ":" in host:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise ForbiddenUrl("the URL cannot be read") from None
        if "%" in host:
            raise ForbiddenUrl("an address with a zone is not fetched from")
        return
    if len(host) > 253 or not _NAME.fullmatch(host):
        raise ForbiddenUrl("the URL's host is no name")
    if _NUMBER.fullmatch(host.rpartition(".")[2]):
        try:
            ipaddress.IPv4Address(host)
        except ValueError:
            raise ForbiddenUrl("an IPv4 address is written as four decimal numbers, without leading zeros") from None


def allowed_by(host: str, domains: Sequence[str]) -> bool:
    """host: without a dot at its end. A domain with a dot in front is that host and all below it."""
    for domain in domains:
        if domain in (EVERY_HOST, host) or domain.strip("[]") == host:
            return True
        if domain.startswith(".") and (host == domain[1:] or host.endswith(domain)):
            return True
    return False
