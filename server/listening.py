"""Where a server listens: the socket, TLS on it, its URL, and whom it lets in there. Serves nothing."""

import contextlib
import ipaddress
import os
import socket
import ssl
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from configs.serve import HttpConfig
from server.children.supervisor import StartFailed
from server.http.middleware.key_limits import KeyLimits
from server.http.middleware.keys import ApiKeys, KeyFileError


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises StartFailed when the address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except TypeError:  # what cannot be encoded as a host name
        raise StartFailed(f"cannot listen on {host}:{port}: not a host name") from None
    except OSError as error:
        why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror  # gaierror's are negative
        raise StartFailed(f"cannot listen on {host}:{port}: {str(why).partition(' (while')[0]}") from None


def url_of(sock: socket.socket, scheme: str) -> str:
    """Where a client on this machine reaches the socket; `scheme` is http or https."""
    host, port = sock.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def scheme_of(config: HttpConfig) -> str:
    return "http" if config.ssl_certfile is None else "https"


def check_tls(config: HttpConfig) -> None:
    """Load certificate and key once, before anything is started. Raises StartFailed for a pair that does not serve."""
    cert, key = config.ssl_certfile, config.ssl_keyfile
    if cert is None:
        if key is not None:
            raise StartFailed(f"--ssl-keyfile: {key} without --ssl-certfile: give the certificate, too")
        return
    where = f"--ssl-certfile {cert}" + (f", --ssl-keyfile {key}" if key else "")

    def password() -> str:
        raise StartFailed(f"{where}: the key has a password: give one without (openssl pkey -in KEY -out PLAIN)")

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key, password)
    except ssl.SSLError as error:  # an OSError, too, whose texts are OpenSSL's own
        why = "the key is not that of the certificate" if error.reason == "KEY_VALUES_MISMATCH" else "not a pair in PEM"
        if key is None and b"-----BEGIN CERTIFICATE-----" in (content := cert.read_bytes()):
            if b"PRIVATE KEY-----" not in content:
                why = "--ssl-keyfile is missing, and the file holds no private key"
        raise StartFailed(f"{where}: {why}") from None
    except OSError as error:
        raise StartFailed(f"{where}: cannot be read: {error.strerror}") from None


def keys_of(config: HttpConfig) -> ApiKeys | None:
    """The keys that were asked for; None where everybody may ask. Raises StartFailed."""
    per_minute, at_once = config.key_requests_per_minute, config.key_concurrency
    limits = None if per_minute is at_once is None else KeyLimits(per_minute, at_once)
    if not config.api_keys and config.api_key_file is None:
        if limits is not None:
            flag = "--key-concurrency" if per_minute is None else "--key-requests-per-minute"
            raise StartFailed(
                f"{flag} counts by API keys, and there are none: set PIXELFERRY_API_KEY or --api-key-file"
            )
        return None
    try:
        return ApiKeys(config.api_keys, config.api_key_file, limits=limits)
    except KeyFileError as error:
        raise StartFailed(str(error)) from None


def hosts_of(config: HttpConfig, sock: socket.socket) -> tuple[str, ...] | None:
    """The names that clients may use beside this machine's for itself; None where they may use any."""
    return config.allowed_hosts if config.allowed_hosts or not exposed(sock) else None


def exposed(sock: socket.socket) -> bool:
    """Whether others than this machine may reach the socket."""
    return not ipaddress.ip_address(sock.getsockname()[0].partition("%")[0]).is_loopback


def check_temporary_directory() -> None:
    """Torch keeps a directory for temporary files and ends with a traceback where none can be. Raises StartFailed."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        raise StartFailed(
            "no directory takes temporary files, and torch needs one: make /tmp writable (docker run --tmpfs /tmp; "
            "an emptyDir at /tmp in Kubernetes) or name another in TMPDIR"
        ) from None


@contextlib.contextmanager
def url_in(file: Path | None, url: str) -> Iterator[None]:
    """The URL in a file during the block. Raises StartFailed where it cannot be written.

    It is a new file each time: a link, or a file of somebody else, in its place is not followed or written.
    """
    if file is None:
        yield
        return
    fresh = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            fresh.unlink()
        with open(fresh, "x", encoding="ascii") as out:
            os.fchmod(out.fileno(), stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)
            out.write(f"{url}\n")
        fresh.replace(file)
    except OSError as error:
        raise StartFailed(f"--url-file: {file} cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # somebody removed it first
            file.unlink()
