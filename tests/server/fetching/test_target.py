"""What a URL names: one reading of it, and what has two readings is refused."""

import pytest

from configs.fetch import MAX_URL
from server.fetching.target import ForbiddenUrl, allowed_by, read_target
from tests.server.tables import each_of

EVERY = ("*",)
SPELLINGS = {  # of 127.0.0.1, and of names that other readers would find there
    "decimal": "http://2130706433/", "hex": "http://0x7f000001/", "hex parts": "http://0x7f.0.0.1/",
    "octal": "http://0177.0.0.1/", "short": "http://127.1/", "zeros": "http://127.000.000.001/",
    "mixed": "http://127.0.0x0.1/", "too large": "http://4294967297/", "five parts": "http://127.0.0.1.1/",
    "user": "http://good.test@127.0.0.1/", "password": "http://a:b@good.test/", 
    "empty user": "http://@good.test/", "empty user and password": "http://:@good.test/",
    "backslash": "http://good.test\\@127.0.0.1/", "encoded at": "http://good.test%40127.0.0.1/",
    "encoded dot": "http://127%2e0%2e0%2e1/", "circled digits": "http://①②⑦.0.0.1/",
    "line end": "http://good.test/\r\nHost: x", "tab in the name": "http://good\t.test/", "blank": "http://good.test /",
    "nul": "http://good.test\0.evil/", "zone": "http://[fe80::1%25eth0]/", "bad brackets": "http://[::1/",
    "no host": "http:///x", "one slash": "http:/good.test/", "port": "http://good.test:70000/", "port 0": "http://a:0/",
    "port letters": "http://good.test:8o/", "empty label": "http://good..test/", "soft hyphen": "http://lo\u00adc@l/",
    "surrogate": "http://good.test/\ud800", "gopher": "gopher://good.test/", "ftp": "ftp://good.test/",
    "file": "file:///etc/passwd", "long": "http://good.test/" + "a" * MAX_URL, "braces": "http://good.test/{a}",
    "long label": f"http://{'a' * 64}.test/", "joined": "http://good.test#@127.0.0.1:x/ ",
}  # fmt: skip


@each_of("url", SPELLINGS.values(), ids=SPELLINGS)
def test_what_can_be_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(ForbiddenUrl):
        read_target(url, EVERY)


@each_of(
    ("url", "host", "port", "path", "header"),
    [
        ("http://good.test/a.png?b=c#d", "good.test", 80, b"/a.png?b=c", b"good.test"),
        ("HTTPS://GOOD.test.:8443", "good.test", 8443, b"/", b"good.test:8443"),
        ("https://good.test:443/%2e%2e/a", "good.test", 443, b"/%2e%2e/a", b"good.test"),
        ("https://bücher.test/bild ä.png".replace(" ", ""), "xn--bcher-kva.test", 443, b"/bild%C3%A4.png", None),
        ("http://127.0.0.1/", "127.0.0.1", 80, b"/", b"127.0.0.1"),  # its address is looked at by who connects
        ("http://127。0。0。1/", "127.0.0.1", 80, b"/", b"127.0.0.1"),
        ("http://[::FFFF:127.0.0.1]:81/", "::ffff:127.0.0.1", 81, b"/", b"[::ffff:127.0.0.1]:81"),
        ("http://good.test#@127.0.0.1/", "good.test", 80, b"/", b"good.test"),
        ("http://good.test?@127.0.0.1/", "good.test", 80, b"/?@127.0.0.1/", b"good.test"),
    ],
)
def test_the_parts_of_a_url(url: str, host: str, port: int, path: bytes, header: bytes | None) -> None:
    target = read_target(url, EVERY)
    assert (target.host, target.port, target.path) == (host, port, path)
    assert header is None or target.host_header == header


@each_of(
    ("domains", "host", "allowed"),
    [
        (["a.test"], "a.test", True),
        (["a.test"], "b.a.test", False),
        (["a.test"], "xa.test", False),
        ([".a.test"], "a.test", True),
        ([".a.test"], "c.b.a.test", True),
        ([".a.test"], "xa.test", False),
        (["b.test", "a.test"], "a.test", True),
        (["[::1]"], "::1", True),
        (["10.0.0.1"], "10.0.0.1", True),
        (["*"], "anything.test", True),
        ([], "a.test", False),
    ],
)
def test_a_domain_is_a_host_or_all_below_it(domains: list[str], host: str, allowed: bool) -> None:
    assert allowed_by(host, domains) == allowed


@each_of(
    ("location", "host", "path"),
    [
        ("/b.png", "a.test", b"/b.png"),
        ("c.png?x", "a.test", b"/dir/c.png?x"),
        ("//b.test/d", "b.test", b"/d"),
        ("https://b.test/e", "b.test", b"/e"),
    ],
)
def test_a_redirect_is_read_from_where_it_came(location: str, host: str, path: bytes) -> None:
    base = read_target("https://a.test/dir/a.png", EVERY)
    target = read_target(location, EVERY, base)
    assert (target.host, target.path, target.scheme) == (host, path, "https")


@each_of("location", ["file:///etc/passwd", "ftp://a.test/", "gopher://a.test/", "//u@a.test/", "//@a.test/", "\\\\b"])
def test_a_redirect_is_checked_as_a_url_is(location: str) -> None:
    with pytest.raises(ForbiddenUrl):
        read_target(location, EVERY, read_target("https://a.test/", EVERY))


def test_a_host_that_is_not_named_is_refused_by_the_flag() -> None:
    with pytest.raises(ForbiddenUrl, match="--allowed-media-domain"):
        read_target("http://b.test/", ("a.test",))
