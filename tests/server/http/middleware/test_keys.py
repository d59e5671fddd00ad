"""Keys: which file is one, when it is read again, and that without one nothing is done for a request."""

import asyncio
import hashlib
import hmac
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from server.http.middleware import keys as module
from server.http.middleware.keys import OPEN_PATHS, ApiKeys, KeyFileError, ListedKey, read_key_file
from server.metrics import Metrics
from server.request_context import context_of
from tests.server.http.exchanges import exchange, surrounded
from tests.server.tables import each_of


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


# ---- the file


def test_a_file_has_one_key_a_line_with_a_label_or_the_lines_number(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"# of team A\n one \r\n\ntwo\nteam-B three\n\tteam-B\t four ")
    expected = [("one", "2"), ("two", "4"), ("three", "team-B"), ("four", "team-B")]
    assert read_key_file(file) == tuple(ListedKey(digest(key), label) for key, label in expected)


@each_of(
    ("content", "message"),
    [
        (b"ok\nof geheim nis\n", "line 2: a key is printable ASCII"),
        ("ok\nlabel geheim\u00e9".encode(), "line 2: a key is printable ASCII"),
        (b"geheim! nis", "line 1: the label before a key has"),
        (b"ok\n12 geheim", "line 2: the label before a key has .* and is no number"),
        (b"geheim" * 11 + b" nis", "line 1: the label"),
        ("geheim\u00e9".encode(), "line 1: a key"),
        (b"geheim\n" * 200_000, "is larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_none_is_named_without_what_stands_there(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    with pytest.raises(KeyFileError, match=rf"^--api-key-file: {file}.*{message}") as caught:
        read_key_file(file)
    assert "geheim" not in str(caught.value)
    with pytest.raises(KeyFileError, match="cannot be read: No such file"):
        read_key_file(tmp_path / "none")


# ---- read again


def test_a_file_that_is_written_again_counts_within_a_second(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text("one\n")
    keys = ApiKeys((digest("fixed"),), file, clock)
    file.write_text("two\n")
    assert keys.allow("Bearer one") and not keys.allow("Bearer two")
    clock.now = module.REREAD_SECONDS
    assert keys.allow("Bearer two") and not keys.allow("Bearer one") and keys.allow("Bearer fixed")


def test_a_secret_that_kubernetes_replaces_counts(tmp_path: Path) -> None:
    """A link to a link to a directory, of which the middle one is replaced by a rename."""
    for name, key in (("v1", "one"), ("v2", "two")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "keys").write_text(key)
    (tmp_path / "..data").symlink_to("v1")
    (tmp_path / "keys").symlink_to("..data/keys")
    clock = Clock()
    keys = ApiKeys((), tmp_path / "keys", clock)
    assert keys.allow("Bearer one")
    (tmp_path / "..tmp").symlink_to("v2")
    os.rename(tmp_path / "..tmp", tmp_path / "..data")
    clock.now = 2.0
    assert keys.allow("Bearer two") and not keys.allow("Bearer one")


def test_while_a_file_cannot_be_taken_its_last_keys_count_and_the_log_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text("one\n")
    keys = ApiKeys((), file, clock)
    file.unlink()
    for clock.now in (2.0, 4.0):
        assert keys.allow("Bearer one")
    assert caplog.text.count("cannot be read: No such file or directory; its last keys go on to count") == 1
    file.write_text("two\n")  # as soon as it is there again, not a second later
    assert keys.allow("Bearer two") and not keys.allow("Bearer one")


def test_an_emptied_file_keeps_its_keys_for_ten_seconds_and_then_lets_nobody_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An editor or a deployment empties a file before it writes it: each request of that moment was a 401."""
    file, clock = tmp_path / "keys", Clock()
    file.write_text("one\n")
    keys = ApiKeys((), file, clock)
    file.write_text("")
    for clock.now in (2.0, 4.0, 2.0 + module.EMPTY_SECONDS - 0.5):
        assert keys.allow("Bearer one") and not keys.allow("Bearer ")
    (warned,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert warned.getMessage() == f"--api-key-file: {file} holds no key; its last keys go on to count for 10 s"
    clock.now = 2.0 + module.EMPTY_SECONDS
    assert not keys.allow("Bearer one") and not keys.allow("Bearer ")
    file.write_text("two\n")  # as soon as it is written
    assert keys.allow("Bearer two") and not keys.allow("Bearer one")
    file.write_text("# none\n")
    clock.now += 2.0
    assert keys.allow("Bearer two")
    file.write_text("two\n")
    assert keys.allow("Bearer two") and len(caplog.records) == 2


def test_keys_of_a_file_that_was_emptied_long_ago_do_not_count_for_who_asks_first(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys", Clock()
    file.write_text("one\n")
    keys = ApiKeys((), file, clock)
    file.write_text("")
    os.utime(file, (0, 0))
    clock.now = 2.0
    assert not keys.allow("Bearer one")


# ---- the comparison


def test_every_key_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    keys = ApiKeys(tuple(map(digest, ("one", "two", "three"))), None)
    for header in ("Bearer one", "Bearer three", "Bearer none", "Basic one", ""):
        compared.clear()
        keys.allow(header)
        assert [len(one) for one, _ in compared] == [32] * 3


@each_of(
    ("header", "expected"),
    [
        ("Bearer one", True), ("bearer one", True), ("BEARER  one ", True), ("Basic one", False), ("one", False),
        ("Bearer", False), ("Bearer ", False), ("Bearer one two", False), ("Bearer ONE", False), ("", False),
        ("Bearer on\xff", False),
    ],
)  # fmt: skip
def test_what_a_header_must_hold(header: str, expected: bool) -> None:
    found = ListedKey(digest("one"), "--api-key:1") if expected else None
    assert ApiKeys((digest("one"),), None).allow(header) == found


# ---- a request


def asked(
    method: str, path: str, *authorization: bytes, others: Sequence[tuple[bytes, bytes]] = ()
) -> tuple[int, dict[str, str], list[str], bool]:
    """Status and headers of the answer (0 where the app was asked), the paths the app saw, whether it was counted."""
    seen: list[str] = []
    metrics = Metrics("tiny", "1")
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])

    async def receive() -> Any:
        raise AssertionError("something of the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", b"a"), *((b"authorization", value) for value in authorization), *others]
    scope = {"type": "http", "http_version": "1.1", "method": method, "path": path, "headers": headers}
    guarded = surrounded(app, metrics, keys=ApiKeys((digest("one"),), None))
    asyncio.run(guarded(scope, receive, send))
    answered = {name.decode(): value.decode() for name, value in sent[0]["headers"]} if sent else {}
    counted = b'mm_rejected_total{reason="invalid_api_key"} 1.0' in metrics.render()
    return (sent[0]["status"] if sent else 0), answered, seen, counted


@each_of("given", [(), (b"Bearer two",), (b"Bearer one", b"Bearer one"), (b"Basic b25lOm9uZQ==",)])
@each_of("path", ["/chat", "/metrics", "/none", "/health/", "/health/live/x", "//health", "/PING"])
def test_without_a_key_nothing_is_done(path: str, given: tuple[bytes, ...], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        status, headers, seen, counted = asked("POST", path, *given)
    assert (status, seen, counted) == (401, [], True)
    assert headers["www-authenticate"] == "Bearer" and headers["x-request-id"]
    assert "two" not in caplog.text


def test_what_tells_clients_apart_is_no_key() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(context_of(scope).client)

    guarded = surrounded(app, keys=ApiKeys((digest("one"), digest("two")), None))
    for value in (b"Bearer one", b"bearer  one ", b"Bearer two"):
        exchange(guarded, [b""], {b"authorization": value})
    assert seen[0] == seen[1] != seen[2] and not any("one" in name or "two" in name for name in seen)


def test_with_a_key_the_app_is_asked() -> None:
    assert asked("POST", "/chat", b"Bearer one") == (0, {}, ["/chat"], False)


@each_of("path", ["/chat", "/v1/messages", "/metrics"])
def test_the_key_may_stand_in_a_header_of_its_own(path: str) -> None:
    """As Anthropic's clients send it. Beside another one nobody knows which is meant."""
    key = (b"x-api-key", b"one")
    assert asked("POST", path, others=[key]) == (0, {}, [path], False)
    assert asked("POST", path, others=[(b"x-api-key", b"two")])[0] == 401
    assert asked("POST", path, b"Bearer two", others=[key])[0] == 401


@each_of("path", sorted(OPEN_PATHS))
def test_probes_need_none(path: str) -> None:
    assert asked("GET", path) == (0, {}, [path], False)


def test_a_browser_may_ask_what_it_may_send() -> None:
    assert asked("OPTIONS", "/v1/chat/completions") == (0, {}, ["/v1/chat/completions"], False)
