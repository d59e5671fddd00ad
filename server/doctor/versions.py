"""The rows of torch_npu, torch and CANN that belong together, and what a machine has of them."""

import re
from dataclasses import dataclass

from server.doctor.finding import Finding, fail, ok, warn

INSTALL = "pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints/ascend.txt -e '.[npu]'"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSet:
    """Source: Ascend/pytorch COMPATIBILITY.en.md of 2026-08 and the wheels' own metadata."""

    torch_npu: str  # without .post
    cann: str
    tried: str  # what this project ran, over a stub of the driver


ROWS = (
    VersionSet(torch_npu="2.10.0", cann="9.1.0", tried="2.10.0.post4"),
    VersionSet(torch_npu="2.11.0", cann="9.1.0", tried=""),
    VersionSet(torch_npu="2.12.0", cann="9.1.0", tried=""),
    VersionSet(torch_npu="2.13.0", cann="9.1.0", tried="2.13.0"),
    VersionSet(torch_npu="2.14.0", cann="9.1.0", tried=""),
)
_PINNED = ROWS[0]


def judge(torch: str | None, torch_npu: str | None, cann: str | None) -> Finding:
    """Whether the three are a row; `cann` is None where a finding of its own says that it is missing."""
    check = "versions"
    has = f"torch_npu {torch_npu or 'none'}, torch {torch or 'none'}, CANN {cann or 'unknown'}"
    if torch_npu is None or torch is None:
        missing = "torch_npu" if torch_npu is None else "torch"
        return fail(check, f"{has}: {missing} is not installed", f"Install them: {INSTALL}")
    release = _release(torch_npu)
    row = next((row for row in ROWS if row.torch_npu == release), None)
    if row is None:
        return warn(check, f"{has}: no known row", f"Install a known one, of torch_npu {_PINNED.tried}: {INSTALL}")
    if _release(torch) != release:
        return fail(check, f"{has}: torch_npu {torch_npu} is built for torch {release}", f"Install the pair: {INSTALL}")
    if cann is not None and _numbers(cann)[:2] != _numbers(row.cann)[:2]:
        say = fail if _numbers(cann) < _numbers(row.cann) else warn
        return say(
            check,
            f"{has}: torch_npu {torch_npu} belongs to CANN {row.cann}",
            f"Install CANN {row.cann} with its toolkit, ops and NNAL, or build the image with --build-arg "
            f"CANN={row.cann}.",
        )
    if row.tried == torch_npu:
        return ok(check, f"{has}: a known row")
    return warn(
        check,
        f"{has}: a row of the vendor's that this project has not run",
        f"Keep it if it serves, else install the pinned one: {INSTALL}",
    )


def _release(version: str) -> str:
    """2.10.0 of 2.10.0.post4 and of 2.10.0+cpu."""
    found = re.match(r"\d+(\.\d+)*", version)
    return found[0] if found else version


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in _release(version).split("."))
