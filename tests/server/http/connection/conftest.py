"""Every attack on a connection is made without TLS and with it; beginnings and ends over both of its versions."""

import ssl
from pathlib import Path

import pytest

from tests.certificates import write_certificate
from tests.server.http.connection.serving import Tls


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("certificate"))


def shown(version: ssl.TLSVersion | None, certificate: tuple[Path, Path]) -> Tls | None:
    cert, key = certificate
    return None if version is None else Tls(cert=cert, key=key, version=version)


@pytest.fixture(params=[None, ssl.TLSVersion.TLSv1_3], ids=["plain", "tls"])
def tls(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Tls | None:
    """Plain, and TLS."""
    return shown(request.param, certificate)


@pytest.fixture(params=[None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["plain", "tls 1.2", "tls 1.3"])
def every_tls(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Tls | None:
    """Each version of TLS, where a handshake or an end is what a test is about."""
    return shown(request.param, certificate)
