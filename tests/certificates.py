"""A certificate that signs itself, made by the openssl command."""

import subprocess
from pathlib import Path


def write_certificate(directory: Path) -> tuple[Path, Path]:
    """Certificate and private key in PEM for localhost, 127.0.0.1 and 127.0.0.3, good for a day."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    command = [
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1",
        "-keyout", str(key), "-out", str(cert), "-subj", "/CN=localhost",
        "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.3",
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    return cert, key
