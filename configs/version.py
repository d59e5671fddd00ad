"""The version of Pixelferry that is installed, and the commit that it was built of."""

import importlib.metadata
import re
from pathlib import Path

UNKNOWN = "unknown"
_STAMP = Path(__file__).with_name("commit.txt")  # written by setup.py and Dockerfile; a checkout has none


def build() -> str:
    """Both, for people: `0.1.0 (commit 0123456789ab)`."""
    found, dirty, changed = commit().partition("-")
    return f"{version()} (commit {found[:12]}{dirty}{changed})" if found != UNKNOWN else f"{version()} (a checkout)"


def version() -> str:
    """As setup.py had it at installation; a checkout that was not installed has none."""
    try:
        return importlib.metadata.version("pixelferry")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def commit(stamp: Path = _STAMP) -> str:
    """As the build wrote it, with "-dirty" where files had changed; `unknown` where it wrote none."""
    try:
        found = stamp.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return UNKNOWN
    return found if re.fullmatch(r"[0-9a-f]{7,64}(-dirty)?", found) else UNKNOWN
