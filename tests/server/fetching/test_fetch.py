"""Fetches of every kind, in a network of the test's own: what comes, what is refused, and who was connected to."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from server.fetching.fetch import read_body, tls_of
from tests.network import corpus
from tests.network.certificates import write_authority
from tests.network.inside_fetcher import HEAD_SECONDS, SECONDS
from tests.network.names import PUBLIC, PUBLIC6
from tests.network.namespace import run_inside, why_not

NO_NETWORK = why_not()
pytestmark = pytest.mark.skipif(bool(NO_NETWORK), reason=f"no network of its own can be made here: {NO_NETWORK}")

GOOD = [
    "http://public.test/medium", f"http://{PUBLIC}/medium", "http://public6.test/medium", f"http://[{PUBLIC6}]/medium",
    "HTTP://PUBLIC.test.:8080/medium#part", "http://bücher.test/medium", "http://public.test/chunks",
    "http://two.test:81/medium", "https://public.test/medium", f"https://{PUBLIC}/medium",
    *(f"http://public.test/redirect?status={status}&to=/medium" for status in corpus.STATUSES),
    "http://public.test/redirect?status=302&to=//other.test:8080/medium",
    "http://flips.test/redirect?status=302&to=/medium",
]  # fmt: skip
FAILED = {
    "http://absent.test/medium": "cannot be resolved",
    "http://public.test/huge-head": "is not whole, or is no HTTP",
    "http://public.test/short": "is not whole, or is no HTTP",
    "http://public.test/negative": "is not whole, or is no HTTP",
    "http://public.test/two-lengths": "is not whole, or is no HTTP",
    "http://public.test/garbage": "is not whole, or is no HTTP",
    "http://public.test/close": "is not whole, or is no HTTP",
    "http://public.test/empty": "the host's answer is empty",
    "http://public.test/nowhere": "it redirects to nowhere",
    "http://public.test/bomb?coding=gzip": "compresses it",
    "http://public.test/bomb?coding=br": "compresses it",
    "http://public.test/bomb?coding=gzip&coding=identity": "compresses it",
    **{
        f"http://public.test/status?of={status}": f"answers with status {status}"
        for status in (204, 206, 304, 404, 500, 300)
    },
    "http://public.test:82/medium": "does not take the connection",
    "https://wrong-name.test/medium": "certificate cannot be verified",
    "https://expired.test/medium": "certificate cannot be verified",
    "https://self-signed.test/medium": "certificate cannot be verified",
    "https://other.test/medium": "certificate cannot be verified",
}  # fmt: skip
SLOW = {
    "http://public.test/trickle": f"it took more than {SECONDS:g} s",
    "http://public.test/slow-head": f"did not begin its answer within {HEAD_SECONDS:g} s",
    "http://public.test/interim": f"did not begin its answer within {HEAD_SECONDS:g} s",
    "http://public.test/silent": f"did not begin its answer within {HEAD_SECONDS:g} s",
    "http://silent.test/medium": f"did not begin its answer within {HEAD_SECONDS:g} s",
    "https://public.test:8080/medium": f"did not begin its answer within {HEAD_SECONDS:g} s",  # it speaks no TLS
}
LARGE = ["http://public.test/endless", "http://public.test/lying"]


def asked_inside(
    directory: Path, urls: list[str], slow: Sequence[str] = (), *, tls: bool = False, **config: Any
) -> dict[str, Any]:
    config = {"domains": ["*"], **config}
    given = json.dumps({"config": config, "urls": urls, "slow": list(slow), "tls": tls})
    found: dict[str, Any] = json.loads(
        run_inside(directory, "tests.network.inside_fetcher", str(directory), given=given)
    )
    return found


@pytest.mark.process
def test_what_is_fetched_and_how_origins_fail(tmp_path: Path) -> None:
    far = "/redirect?status=302&to=" + corpus.quoted("/redirect?status=302&to=" + corpus.quoted("/medium"))
    three = f"http://public.test/redirect?status=302&to={corpus.quoted(far)}"
    four = f"http://public.test/redirect?status=302&to={corpus.quoted(three)}"
    urls = [*GOOD, three, *FAILED, *LARGE, four]
    told = asked_inside(tmp_path, urls, tuple(SLOW), tls=True)
    found = dict(zip([*urls, *SLOW], told["fetched"], strict=True))
    for url in (*GOOD, three):
        assert found[url]["outcome"] == "whole" and found[url]["good"], (url, found[url])
    for url, why in {**FAILED, **SLOW}.items():
        assert found[url]["outcome"] == "failed" and why in found[url]["why"], (url, found[url])
    for url in LARGE:
        assert found[url]["outcome"] == "large" and found[url]["nbytes"] <= 1 << 20, (url, found[url])
    assert found[four]["outcome"] == "failed" and "more than 3 times" in found[four]["why"]
    assert found["http://public.test/chunks"]["pieces"] == 1, "a byte a chunk is no message each"
    assert max(found[url]["seconds"] for url in SLOW) < SECONDS + 3
    assert told["asked"]["flips.test"] == 1 and told["forbidden"] == []
    said = json.dumps([one["why"] for one in found.values()])
    assert "secret" not in said and PUBLIC not in said
    heads = "".join(told["requests"]).lower()
    assert "cookie" not in heads and "authorization" not in heads and "user-agent: pixelferry/test" in heads
    assert "accept-encoding: identity" in heads


@pytest.mark.process
def test_nothing_of_the_corpus_is_connected_to(tmp_path: Path) -> None:
    urls = corpus.all_forbidden()
    told = asked_inside(tmp_path, urls)
    by_name = [one for url, one in zip(urls, told["fetched"], strict=True) if url in corpus.by_name()]
    forbidden = [one for url, one in zip(urls, told["fetched"], strict=True) if url not in corpus.by_name()]
    assert [one for one in forbidden if one["outcome"] != "forbidden"] == []
    # Whether the resolver knows a private name is not told: each is like one that is not there.
    assert {(one["outcome"], one["why"]) for one in by_name} == {
        ("failed", "the name of the host cannot be resolved to a public address")
    }
    assert told["forbidden"] == [] and len(urls) > 150
    assert told["connected"] and all("secret" not in one["why"] for one in told["fetched"])


@pytest.mark.process
def test_the_listener_sees_what_would_be_connected_to(tmp_path: Path) -> None:
    """The same corpus with all networks open: the listener counts, so that its 0 above says something."""
    urls = [*corpus.addresses(), *corpus.names()]
    told = asked_inside(tmp_path, urls, networks=["0.0.0.0/0", "::/0"])
    assert len(told["forbidden"]) > 60
    assert {"127.0.0.1", "169.254.169.254", "10.0.0.1", "::1"} <= {where for where, _ in told["forbidden"]}


@pytest.mark.process
def test_through_a_proxy_names_count_and_nobody_else_is_asked(tmp_path: Path) -> None:
    """The proxy resolves them, and guards addresses."""
    domains, proxy = ["public.test", "private.test", "refused.test"], "http://[2001:db8::9]:3128"
    domains += [f"[{PUBLIC6}]", PUBLIC]
    good = ["http://public.test/medium", "https://public.test/medium", "http://private.test/medium"]
    good += [f"http://[{PUBLIC6}]/medium", f"https://[{PUBLIC6}]/medium"]
    bad = {
        "http://other.test/medium": "forbidden",
        "http://10.0.0.1/medium": "forbidden",
        "http://public.test/redirect?status=302&to=http://10.0.0.1/medium": "forbidden",
        "http://public.test/redirect?status=302&to=http://other.test/medium": "forbidden",
        "http://refused.test/medium": "failed",
        "https://refused.test/medium": "failed",
    }
    told = asked_inside(tmp_path, [*good, *bad], tls=True, domains=domains, proxy=proxy)
    found = [one["outcome"] for one in told["fetched"]]
    assert found == ["whole"] * len(good) + list(bad.values())
    asked = {line.split()[1] for line in told["proxied"]}
    hosts = {urlsplit(url if "//" in url else f"//{url}").hostname for url in asked}
    assert told["asked"] == {} and hosts == {"public.test", "private.test", "refused.test", PUBLIC6}
    assert {"CONNECT public.test:443 HTTP/1.1", f"CONNECT [{PUBLIC6}]:443 HTTP/1.1"} < set(told["proxied"])
    assert told["fetched"][-1]["why"] == "the proxy refuses it"


@pytest.mark.process
def test_no_variable_names_authorities_or_a_log_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be taken by the context that Python makes by default."""
    ca = write_authority(tmp_path)
    for name, value in (("SSL_CERT_FILE", ca), ("SSL_CERT_DIR", tmp_path), ("SSLKEYLOGFILE", tmp_path / "keys")):
        monkeypatch.setenv(name, str(value))

    def known(context: ssl.SSLContext) -> bool:
        return any((("commonName", "ours"),) in one["subject"] for one in context.get_ca_certs())

    default, own = ssl.create_default_context(), tls_of(None)
    assert known(default) and default.keylog_filename
    assert not known(own) and not own.keylog_filename
    assert own.verify_mode == ssl.CERT_REQUIRED and own.check_hostname
    assert known(tls_of(ca))


class BodyDouble:
    """An origin's body in chunks of so many bytes, all of which have come."""

    def __init__(self, size: int, n: int) -> None:
        self.size, self.n = size, n

    async def aiter_stream(self) -> AsyncIterator[bytes]:
        for _ in range(self.n):
            yield b"x" * self.size


def test_a_body_in_small_chunks_leaves_turns_to_others() -> None:
    async def read(size: int, n: int) -> tuple[int, int]:
        """(bytes, turns that another task had meanwhile)."""
        taken, turns = 0, 0

        async def take(piece: bytes) -> None:
            nonlocal taken
            taken += len(piece)

        async def other() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        beside = asyncio.create_task(other())
        response: Any = BodyDouble(size, n)
        try:
            await read_body(response, 1 << 20, take)
        finally:
            beside.cancel()
        return taken, turns

    taken, turns = asyncio.run(read(100, 2000))
    assert taken == 200_000 and turns > 20
