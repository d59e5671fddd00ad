"""URLs that lead, or seem to lead, where nothing may be fetched from: by spelling, by name and by redirect."""

from tests.network.names import METADATA, PUBLIC
from tests.server.fetching.test_addresses import FORBIDDEN
from tests.server.fetching.test_target import SPELLINGS

STATUSES = (301, 302, 303, 307, 308)
NAMES = (
    "private.test", "loopback.test", "metadata.test", "mixed.test", "mixed6.test", "mapped.test", "nat64.test",
    "localhost", "intranet", "LOCALHOST", "localhost.", "metadata.test.", "ip6-localhost.", "private.test:8080",
)  # fmt: skip
ELSEWHERE = (
    f"http://{METADATA}/latest/meta-data/", "http://127.0.0.1:8080/medium", "http://[::1]/medium",
    "http://[::ffff:10.0.0.1]/medium", "http://2130706433/medium", "//loopback.test/medium",
    "http://mixed.test/medium", "file:///etc/passwd", "ftp://public.test/medium", "gopher://127.0.0.1:80/_GET",
    "data:image/png;base64,AAAA", "http://user:word@public.test/medium", "http://public.test\\@127.0.0.1/medium",
)  # fmt: skip


def addresses() -> list[str]:
    return [f"http://[{one}]/medium" if ":" in one else f"http://{one}/medium" for one in FORBIDDEN]


def names() -> list[str]:
    return [f"http://{name}/medium" for name in NAMES] + [f"https://{name}/medium" for name in NAMES[:3]]


def redirects() -> list[str]:
    """From a host that is allowed, by each status."""
    hops = [f"http://public.test/redirect?status={status}&to={quoted(to)}" for status in STATUSES for to in ELSEWHERE]
    second = f"/redirect?status=307&to={quoted('http://127.0.0.1/medium')}"
    return [*hops, f"http://public.test/redirect?status=302&to={quoted(second)}"]


def by_name() -> set[str]:
    """Those that lead to a name, none of which an operator has named."""
    hops = {f"/redirect?status={status}&to={quoted(to)}" for status in STATUSES for to in ELSEWHERE if ".test/" in to
            and "@" not in to and not to.startswith("ftp")}  # fmt: skip
    return {*names(), *(f"http://public.test{hop}" for hop in hops)}


def quoted(url: str) -> str:
    return "".join(f"%{byte:02x}" for byte in url.encode())


def all_forbidden() -> list[str]:
    spelled = [url for url in SPELLINGS.values() if url.isprintable() and url.startswith("http")]
    return [*addresses(), *names(), *redirects(), *spelled, f"http://{PUBLIC}@10.0.0.1/medium"]
