"""One finding of the doctor: what was looked at, what was found, and the one sentence that mends it."""

from typing import Literal

import msgspec


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """`warn` serves, though worse than it could; `fail` does not serve; `skip` could not be looked at."""

    check: str
    verdict: Literal["ok", "warn", "fail", "skip"]
    found: str
    remedy: str = ""
    follows: str = ""  # the check whose fault is the cause of this one, and whose remedy mends both


def ok(check: str, found: str) -> Finding:
    return Finding(check=check, verdict="ok", found=found)


def warn(check: str, found: str, remedy: str) -> Finding:
    return Finding(check=check, verdict="warn", found=found, remedy=remedy)


def fail(check: str, found: str, remedy: str) -> Finding:
    return Finding(check=check, verdict="fail", found=found, remedy=remedy)


def skip(check: str, found: str) -> Finding:
    return Finding(check=check, verdict="skip", found=found)
