"""Media by http(s): which hosts they may come from, how, and how much of the server one may take."""

from pathlib import Path
from typing import Annotated

import msgspec

from configs.setting import Setting

MIB = 1 << 20
EVERY_HOST = "*"
MAX_URL = 8192  # characters; what browsers and proxies take, and more than any signed URL has

# fmt: off


class FetchConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Goes to the process that fetches, which is there only where a domain is named."""

    domains: Annotated[tuple[str, ...], Setting(
        "host from which media may be fetched by http(s): HOST, .HOST for it and all below it, * for all public ones; "
        "repeatable; none by default", name="allowed_media_domain", kind="domains",
    )] = ()
    networks: Annotated[tuple[str, ...], Setting(
        "addresses that such a host may have although they are not globally routable, as 10.1.0.0/16; repeatable",
        name="allowed_media_network", kind="networks",
    )] = ()
    ca: Annotated[Path | None, Setting(
        "certificates in PEM that such hosts may be known by, beside the system's; no variable names any",
        name="media_ca", kind="file",
    )] = None
    proxy: Annotated[str | None, Setting(
        "http://HOST:PORT that all media are fetched through, which then guards addresses: here names alone are "
        "checked; no variable names one", name="media_proxy", kind="proxy",
    )] = None
    first_byte_seconds: Annotated[float, Setting(
        "how long a host may take to begin its answer, from the look-up of its name to the last of the head",
        0.1, 3600, "seconds", name="media_first_byte_seconds",
    )] = 10.0
    seconds: Annotated[float, Setting(
        "how long fetching one medium may take, all redirects included", 0.1, 3600, "seconds",
        name="media_fetch_seconds",
    )] = 30.0
    max_bytes: Annotated[int, Setting(
        "bytes that all media of one request by URL may have together; each at most max_file_mib",
        1, 190, "MiB", name="max_fetched_mib",
    )] = 128 * MIB
    at_once: Annotated[int, Setting(
        "media that are fetched at once; further ones wait", 1, 1024, name="max_media_fetches"
    )] = 64
    client_at_once: Annotated[int, Setting(
        "of these, those of one client", 1, 1024, name="max_client_media_fetches"
    )] = 16
