"""Every attack on a connection is made without TLS, and over both of its versions."""

import ssl
from pathlib import Path

import pytest

from tests.certificates import write_certificate
from tests.server.http.connection.serving import Tls


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_certificate(tmp_path_factory.mktemp("certificate"))


@pytest.fixture(params=[None, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["plain", "tls 1.2", "tls 1.3"])
def tls(request: pytest.FixtureRequest, certificate: tuple[Path, Path]) -> Tls | None:
    """Plain, and each version of TLS."""
    cert, key = certificate
    return None if request.param is None else Tls(cert=cert, key=key, version=request.param)
