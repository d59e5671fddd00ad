"""Where a server listens and whom it lets in; what cannot serve is said in one sentence before anything starts."""

import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs.serve import HttpConfig
from server.children.supervisor import StartFailed
from server.listening import (
    check_temporary_directory,
    check_tls,
    exposed,
    hosts_of,
    keys_of,
    listen,
    scheme_of,
    url_in,
    url_of,
)
from tests.certificates import write_certificate
from tests.tables import each_of


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_a_client_reaches_the_socket_by_its_url() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        assert url_of(sock, "http") == f"http://127.0.0.1:{port}" and port > 0
        socket.create_connection(("127.0.0.1", port), 5).close()


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@each_of("host", ["::1", "::"])
def test_an_ipv6_url_has_brackets(host: str) -> None:
    with listen(host, 0) as sock:
        port = sock.getsockname()[1]
        assert sock.family == socket.AF_INET6 and url_of(sock, "http") == f"http://[::1]:{port}"
        socket.create_connection(("::1", port), 5).close()


@each_of("host", ["0.0.0.0", ""])
def test_who_listens_everywhere_is_reached_on_this_machine(host: str) -> None:
    with listen(host, 0) as sock:
        assert url_of(sock, "http") == f"http://127.0.0.1:{sock.getsockname()[1]}"


def test_an_address_that_is_taken_is_said() -> None:
    with listen("127.0.0.1", 0) as sock:
        port = sock.getsockname()[1]
        with pytest.raises(StartFailed) as caught:
            listen("127.0.0.1", port)
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{port}: Address already in use"


def test_a_host_that_nobody_knows_is_said() -> None:
    with pytest.raises(StartFailed, match=r"^cannot listen on \.\.:80: Name or service not known") as caught:
        listen("..", 80)
    assert "\n" not in str(caught.value)


@each_of(("host", "expected"), [("127.0.0.1", False), ("127.0.0.9", False), ("0.0.0.0", True)])
def test_who_else_reaches_a_socket(host: str, expected: bool) -> None:
    with listen(host, 0) as sock:
        assert exposed(sock) == expected


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@each_of(("host", "expected"), [("::1", False), ("::", True)])
def test_who_else_reaches_an_ipv6_socket(host: str, expected: bool) -> None:
    with listen(host, 0) as sock:
        assert exposed(sock) == expected


# ---- TLS


@pytest.mark.process
def test_a_pair_that_serves_passes(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    for config in (HttpConfig(ssl_certfile=cert, ssl_keyfile=key), HttpConfig(ssl_certfile=both)):
        check_tls(config)
        assert scheme_of(config) == "https"
    check_tls(HttpConfig())
    assert scheme_of(HttpConfig()) == "http"


def refused(**files: Any) -> str:
    with pytest.raises(StartFailed) as caught:
        check_tls(HttpConfig(**files))
    message = str(caught.value)
    assert message.startswith("--ssl-") and "\n" not in message and all(str(path) in message for path in files.values())
    return message


@pytest.mark.process
def test_a_pair_that_does_not_serve_is_one_line(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    (tmp_path / "other").mkdir()
    _, other = write_certificate(tmp_path / "other")
    empty = tmp_path / "empty"
    empty.touch()
    assert "not that of the certificate" in refused(ssl_certfile=cert, ssl_keyfile=other)
    assert "without --ssl-certfile" in refused(ssl_keyfile=key)
    assert refused(ssl_certfile=cert).endswith(": --ssl-keyfile is missing, and the file holds no private key")
    assert "not a pair in PEM" in refused(ssl_certfile=empty)
    assert "not a pair in PEM" in refused(ssl_certfile=key, ssl_keyfile=cert)
    assert "not a pair in PEM" in refused(ssl_certfile=empty, ssl_keyfile=key)
    assert "cannot be read: No such file" in refused(ssl_certfile=cert, ssl_keyfile=tmp_path / "gone")


@pytest.mark.process
def test_a_key_with_a_password_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    cert, key = write_certificate(tmp_path)
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-in", str(key), "-aes256", "-passout", "pass:secret", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    assert "the key has a password" in refused(ssl_certfile=cert, ssl_keyfile=locked)


# ---- keys


def test_keys_come_from_both_places_or_there_are_none(tmp_path: Path) -> None:
    assert keys_of(HttpConfig()) is None
    file = tmp_path / "keys"
    file.write_text("one\n")
    assert keys_of(HttpConfig(api_key_file=file)) is not None
    file.write_text("# none\n")
    with pytest.raises(StartFailed, match=r"^--api-key-file: .*keys holds no key: write one a line$"):
        keys_of(HttpConfig(api_key_file=file))


def test_limits_of_keys_want_keys() -> None:
    keys = keys_of(HttpConfig(api_keys=(b"x" * 32,), key_concurrency=2))
    assert keys is not None and keys.limits is not None
    assert (keys.limits.per_minute, keys.limits.at_once) == (None, 2)
    for name in ("key_requests_per_minute", "key_concurrency"):
        flag = name.replace("_", "-")
        with pytest.raises(StartFailed, match=f"^--{flag} counts by API keys, and there are none: set"):
            keys_of(msgspec.structs.replace(HttpConfig(), **{name: 1}))


# ---- temporary files


def test_a_machine_without_a_temporary_directory_is_told_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    check_temporary_directory()

    def missing() -> Any:
        raise FileNotFoundError("No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", missing)
    with pytest.raises(StartFailed, match=r"make /tmp writable \(docker run --tmpfs /tmp; .* in TMPDIR$"):
        check_temporary_directory()


# ---- the URL in a file


def test_the_url_stands_in_its_file_while_the_server_listens(tmp_path: Path) -> None:
    file = tmp_path / "url"
    with url_in(file, "http://127.0.0.1:1"):
        assert file.read_text() == "http://127.0.0.1:1\n" and file.stat().st_mode & 0o777 == 0o644
        assert os.listdir(tmp_path) == ["url"]
    assert os.listdir(tmp_path) == []
    with url_in(None, "http://127.0.0.1:1"):
        assert os.listdir(tmp_path) == []


def test_a_link_in_the_place_of_the_url_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    for name in ("url", f"url.{os.getpid()}"):
        (tmp_path / name).symlink_to(victim)
    with url_in(tmp_path / "url", "http://127.0.0.1:1"):
        assert not (tmp_path / "url").is_symlink()
    assert os.listdir(tmp_path) == ["victim"] and victim.read_text() == "precious"


def test_a_url_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match=r"^--url-file: .*/no/url cannot be written: No such file"):
        with url_in(tmp_path / "no" / "url", "http://127.0.0.1:1"):
            raise AssertionError("it ran")


@each_of(("host", "allowed", "found"), [
    ("127.0.0.1", (), ()), ("127.0.0.1", ("a.example",), ("a.example",)), ("0.0.0.0", (), None),
    ("0.0.0.0", ("a.example",), ("a.example",)),
])  # fmt: skip
def test_names_are_asked_for_on_a_loopback_address_and_where_some_are_given(
    host: str, allowed: tuple[str, ...], found: tuple[str, ...] | None
) -> None:
    with listen(host, 0) as sock:
        assert hosts_of(HttpConfig(allowed_hosts=allowed), sock) == found
