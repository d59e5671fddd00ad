"""Certificates of an authority of our own, good ones and bad ones, made by the openssl command."""

import ssl
import subprocess
from pathlib import Path

KEY = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]


def openssl(directory: Path, *args: str) -> None:
    subprocess.run(["openssl", *args], cwd=directory, check=True, capture_output=True)


def write_authority(directory: Path) -> Path:
    """ca.pem and ca.key."""
    openssl(directory, "req", "-x509", *KEY, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=ours")
    return directory / "ca.pem"


def contexts_of(directory: Path) -> dict[str, ssl.SSLContext]:
    """By the name that a client asks for. The first one is good."""
    names = {"public.test": "public.test", "wrong-name.test": "else.test", "expired.test": "expired.test"}
    for asked, name in names.items():
        openssl(directory, "req", "-new", *KEY, "-keyout", f"{asked}.key", "-out", f"{asked}.csr", "-subj", "/CN=x")
        (directory / "san").write_text(f"subjectAltName=DNS:{name},IP:93.184.216.34,IP:2606:2800:220:1::34")
        days = "-1" if asked == "expired.test" else "1"
        openssl(
            directory, "x509", "-req", "-in", f"{asked}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-out",
            f"{asked}.pem", "-days", days, "-extfile", "san",
        )  # fmt: skip
    openssl(
        directory, "req", "-x509", *KEY, "-keyout", "self-signed.test.key", "-out", "self-signed.test.pem", "-days",
        "1", "-subj", "/CN=x", "-addext", "subjectAltName=DNS:self-signed.test",
    )  # fmt: skip
    found: dict[str, ssl.SSLContext] = {}
    for asked in (*names, "self-signed.test"):
        found[asked] = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        found[asked].load_cert_chain(directory / f"{asked}.pem", directory / f"{asked}.key")
    return found
