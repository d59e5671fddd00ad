"""Reads the bytes of a medium from its data: URL or path; those behind an http(s) URL are there by then."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

import pybase64

from tokenization.chat.errors import ChatError
from tokenization.chat.parts import FORBIDDEN_URL, Fetched

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*://")
MAX_PATH = 4096  # the kernel opens no longer one
SLICE = 65536  # characters
FEW_SIGNS = 1 << 18  # percent signs that any data: URL may hold
_NO_URLS = (
    "media by http(s) are not enabled on this server (--allowed-media-domain names a host that they may come from); "
    "send the bytes in a data: URL"
)
_FORM = "data:TYPE;base64,DATA (TYPE is image/png, or what the file is)"
_OUTSIDE = (
    "this path is not a file that the server may open (it must be there, under a directory that the server was started "
    "with: --allow-media-root)"
)
_NO_PATHS = (
    "local paths are not enabled on this server (--allow-media-root names a directory whose files may be named); send "
    "the bytes in a data: URL"
)
# What stands in the place of a path and is none: no name of a file is so long, and a picture has more characters.
_BARE = re.compile(r"[A-Za-z0-9+/_=\s-]{64,}")
_BASE64 = re.compile(r"; *base64 *$", re.IGNORECASE)  # with the blanks that browsers pass over
_BREAKS = b" \t\r\n"
_PLAIN = bytes.maketrans(b"-_", b"+/")
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_OPEN_DIRECTORY = os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


def fetch(source: str | Fetched, *, roots: Sequence[Path], max_bytes: int) -> bytes:
    """The bytes of a `data:` URL, a `file://` URL, or a path, absolute or relative to the working directory or a root.

    Symbolic links below a root are not followed. Raises ChatError; its message is the same for every path
    that is no readable regular file under a root, so that it tells nothing of other files.
    """
    if isinstance(source, Fetched):
        return source.data
    if source[:5].lower() == "data:":
        return _read_data_url(source, max_bytes)
    scheme = _SCHEME.match(source)
    if scheme is None:
        return _read_path(source, roots, max_bytes)
    name = scheme.group()[:-3].lower()
    if name == "file":
        host, slash, path = source[scheme.end() :].partition("/")
        if host not in ("", "localhost") or not slash:
            raise ChatError("a file:// URL needs an absolute path and no host")
        # What stands in three characters of a URL is one byte: a longer one is no path, and is not decoded.
        decoded = path if len(path) > 3 * MAX_PATH else unquote(path)
        return _read_path("/" + decoded, roots, max_bytes)
    if name in ("http", "https"):
        raise ChatError(_NO_URLS, code=FORBIDDEN_URL)
    raise ChatError("this kind of URL is not supported; send the bytes in a data: URL")


def _read_data_url(source: str, max_bytes: int) -> bytes:
    comma = source.find(",", 5, 5 + 1024)
    if comma < 0:
        raise ChatError(f"a data: URL has the form {_FORM}")
    too_large = f"the data is larger than the allowed {max_bytes} bytes"
    is_base64 = _BASE64.search(source, 5, comma) is not None
    payload = source[comma + 1 :]
    if len(payload) > 3 * max_bytes + 4:  # each byte takes at most three characters
        raise ChatError(too_large)
    # Base64 that went through encodeURIComponent has a sign in 34 characters. Decoding much more is dear.
    if payload.count("%") > max(FEW_SIGNS, len(payload) // 24):
        raise ChatError("too much of the data is percent-encoded; send it in base64")
    if not is_base64:
        data = _unquoted(payload)
    else:
        encoded = _unquoted(payload) if "%" in payload else payload
        data = _decoded(encoded, max_bytes)
    if len(data) > max_bytes:
        raise ChatError(too_large)
    if not data:
        raise ChatError("the data: URL holds no data")
    return data


def _decoded(encoded: str | bytes, max_bytes: int) -> bytes:
    """What base64 spells; more than `max_bytes` is not decoded. Raises ChatError.

    What is broken into lines, or meant for URLs, or without padding, is read at a second try.
    """
    if len(encoded) // 4 * 3 - 2 <= max_bytes:
        with suppress(ValueError):
            return pybase64.b64decode(encoded, validate=True)
    ascii = encoded.encode("ascii", "replace") if isinstance(encoded, str) else encoded
    plain = ascii.translate(_PLAIN, _BREAKS)
    if len(plain) // 4 * 3 - 2 > max_bytes:
        raise ChatError(f"the data is larger than the allowed {max_bytes} bytes")
    try:
        return pybase64.b64decode(plain + b"=" * (-len(plain) % 4), validate=True)
    except ValueError:
        raise ChatError("the base64 data is not valid") from None


def _unquoted(text: str) -> bytes:
    """Without percent-encoding. In slices: urllib makes an object of whatever stands between two signs."""
    found = bytearray()
    start = 0
    while start < len(text):
        end = start + SLICE
        sign = text.find("%", end - 2, end)
        if sign >= 0:  # its digits belong to it
            end = sign
        found += unquote_to_bytes(text[start:end])
        start = end
    return bytes(found)


def _read_path(path: str, roots: Sequence[Path], max_bytes: int) -> bytes:
    outside = _OUTSIDE if roots else _NO_PATHS
    if _BARE.fullmatch(path, 0, MAX_PATH):
        outside += f"; base64 is sent as {_FORM}"
    if not roots or len(path) > MAX_PATH or "\0" in path or ".." in path.split("/"):
        raise ChatError(outside)
    for root, names in _candidates(path, roots):
        try:
            fd = _open_beneath(root, names)
        except OSError:
            continue
        try:
            return _read_regular(fd, max_bytes)
        finally:
            os.close(fd)
    raise ChatError(outside)


def _candidates(path: str, roots: Sequence[Path]) -> Iterator[tuple[str, list[str]]]:
    """(real path of a root, names below it): every way to read `path` as one under a root. Looks at no file."""
    absolute = path if path.startswith("/") else os.path.join(os.getcwd(), path)
    names = [name for name in absolute.split("/") if name not in ("", ".")]
    for root in roots:
        real = os.path.realpath(root)
        for spelling in (os.path.abspath(root), real):
            above = [name for name in spelling.split("/") if name]
            if names[: len(above)] == above and len(names) > len(above):
                yield real, names[len(above) :]
        if not path.startswith("/"):
            yield real, [name for name in path.split("/") if name not in ("", ".")]


def _open_beneath(root: str, names: list[str]) -> int:
    """A descriptor of the regular file root/names..., opened name by name: no link leads outside. Raises OSError."""
    if not names:
        raise OSError
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names[:-1]:
            below = os.open(name, _OPEN_DIRECTORY, dir_fd=directory)
            os.close(directory)
            directory = below
        fd = os.open(names[-1], _OPEN_FILE, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError
    return fd


def _read_regular(fd: int, max_bytes: int) -> bytes:
    too_large = f"the file is larger than the allowed {max_bytes} bytes"
    size = os.fstat(fd).st_size
    if size > max_bytes:
        raise ChatError(too_large)
    pieces: list[bytes] = []
    left = max_bytes + 1  # a file may grow while it is read, and some report no size at all
    try:
        while left > 0 and (piece := os.read(fd, min(left, max(size + 1, 65536)))):
            pieces.append(piece)
            left -= len(piece)
    except OSError:
        raise ChatError("the file could not be read") from None
    if left <= 0:
        raise ChatError(too_large)
    if not pieces:
        raise ChatError("the file is empty")
    return b"".join(pieces)
