"""Who may ask: API keys, and the 401 for whoever has none of them. Knows digests; a key itself is never kept."""

import contextlib
import hashlib
import hmac
import logging
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.setting import SECRET
from server.http.middleware.key_limits import KeyLimits
from server.requests.refusal import unauthorized

log = logging.getLogger("pixelferry.http")

REREAD_SECONDS = 1.0  # how long a key that was taken out of the file may still pass
EMPTY_SECONDS = 10.0  # how long the keys of a file may pass that was emptied: somebody may be about to write it
# Probes hold no keys; the page of the document is empty until it was given one.
OPEN_PATHS = frozenset({"/health", "/healthz", "/health/live", "/health/ready", "/ping", "/docs"})
_MAX_FILE_BYTES = 1 << 20
_LABEL = re.compile(r"(?![0-9]+$)[A-Za-z0-9._-]{1,64}")  # a number is a line's


class KeyFileError(Exception):
    """The key file cannot be taken: the message names file and line, and shows nothing of what stands there."""


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key of this server."""

    digest: bytes  # SHA-256
    label: str  # what it is counted by; keys may share one


def read_key_file(path: Path) -> tuple[ListedKey, ...]:
    """One key a line, after a label or without one: then the line's number is its label.

    Blank lines, and lines that begin with #, say nothing. Raises KeyFileError.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"--api-key-file: {path} cannot be read: {error.strerror}") from None
    if len(content) > _MAX_FILE_BYTES:
        raise KeyFileError(f"--api-key-file: {path} is larger than {_MAX_FILE_BYTES} bytes")
    keys = []
    for number, line in enumerate(content.decode("ascii", errors="replace").splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) > 2 or not SECRET.fullmatch(words[-1]):
            raise KeyFileError(
                f"--api-key-file: {path}, line {number}: a key is printable ASCII without blanks, alone or behind a "
                "label"
            )
        if len(words) == 2 and not _LABEL.fullmatch(words[0]):
            raise KeyFileError(
                f"--api-key-file: {path}, line {number}: the label before a key has at most 64 letters, digits, dots, "
                "dashes and underscores, and is no number"
            )
        label = words[0] if len(words) == 2 else str(number)
        keys.append(ListedKey(hashlib.sha256(words[-1].encode("ascii")).digest(), label))
    return tuple(keys)


class ApiKeys:
    """The keys of the command line or environment, and those of a file, which is read again while the server runs.

    The file is read as a request comes, at most once a second, by its name: so a replaced link, as Kubernetes
    replaces a secret, counts as a change. While the file cannot be taken its last keys hold. They do for EMPTY_SECONDS
    after it was emptied, by its own time, too; then there are none.
    """

    def __init__(
        self, fixed: tuple[bytes, ...], file: Path | None, clock: Callable[[], float] = time.monotonic, *,
        limits: KeyLimits | None = None,
    ) -> None:  # fmt: skip
        """limits: of each; None: none. Raises KeyFileError for a file that cannot be taken, or that has no key."""
        self.limits = limits
        self._fixed = tuple(ListedKey(digest, f"--api-key:{n}") for n, digest in enumerate(fixed, 1))
        self._file = file
        self._clock = clock
        self._of_file: tuple[ListedKey, ...] = ()
        self._problem = ""
        self._empty_until: float | None = None  # when the last keys of a file without any end
        self._read_at = clock()
        if file is not None:
            self._of_file = read_key_file(file)
            if not self._of_file:
                raise KeyFileError(f"--api-key-file: {file} holds no key: write one a line")

    def allow(self, authorization: str) -> ListedKey | None:
        """The key that the value of an Authorization header holds. Its time tells nothing about which, or how far."""
        self.reread()
        scheme, _, key = authorization.partition(" ")
        given = digest_of(key)
        found = None
        for listed in (*self._fixed, *self._of_file):
            found = listed if hmac.compare_digest(given, listed.digest) else found
        return found if scheme.lower() == "bearer" else None

    def reread(self, *, at_once: bool = False) -> None:
        """Look at the file again where that is due, or at once."""
        now = self._clock()
        # Else it may be in the middle of being written.
        settled = self._of_file and not self._problem and self._empty_until is None and not at_once
        if self._file is None or (settled and now - self._read_at < REREAD_SECONDS):
            return
        self._read_at = now
        try:
            keys, problem = read_key_file(self._file), ""
        except KeyFileError as error:
            keys, problem = self._of_file, f"{error}; its last keys go on to count"
        if not keys and self._still_count(self._file, now):
            keys = self._of_file
        elif keys:
            self._empty_until = None
        if problem and problem != self._problem:
            log.error(problem)
        elif keys != self._of_file:
            log.info("--api-key-file: %s was read again and has %d keys", self._file, len(keys))
        self._of_file, self._problem = keys, problem

    def _still_count(self, file: Path, now: float) -> bool:
        """Whether the last keys of a file without any are still taken; the first look at it says so."""
        if self._empty_until is None:
            left = EMPTY_SECONDS
            with contextlib.suppress(OSError):  # it may be seen late: nobody asked meanwhile
                left -= max(0.0, time.time() - file.stat().st_mtime)
            self._empty_until = now + left
            if self._of_file and left > 0:
                log.warning("--api-key-file: %s holds no key; its last keys go on to count for %.0f s", file, left)
        return now < self._empty_until


def digest_of(key: str) -> bytes:
    return hashlib.sha256(key.strip().encode("latin-1")).digest()


def check_key(given: Sequence[bytes], keys: ApiKeys) -> ListedKey:
    """The key in these Authorization headers, of which there is one. Raises Refusal (401)."""
    headers = [value.decode("latin-1") for value in given]
    if len(headers) == 1 and (found := keys.allow(headers[0])) is not None:
        return found
    how = "no key of this server" if headers else "no key"
    raise unauthorized(f"{how} came with the request: send one as `Authorization: Bearer KEY` or `x-api-key: KEY`")
