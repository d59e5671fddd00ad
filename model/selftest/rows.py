"""What the self-test says while it runs: its device, what it begins, and a row for each thing that was tried."""

from typing import Literal

import msgspec

Verdict = Literal["pass", "fail", "skip", "told"]
"""skip: not here; told: a fact about this device that is neither right nor wrong."""


class CaseResult(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    section: str
    name: str  # of the operator, or of what was tried
    case: str = ""  # shape and kind of input
    dtype: str = ""
    verdict: Verdict
    error: float | None = None  # largest difference to the reference, as a share of the largest value in its row
    tolerance: float | None = None
    microseconds: float | None = None  # of one call or one step
    figures: dict[str, float] = {}  # by what they count, with the unit
    note: str = ""


class Opened(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The device is ready for its first operator."""

    device: str
    versions: dict[str, str]


class Begun(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What the next row is about, so that a crash or a hang has a name."""

    section: str
    name: str
    seconds: float  # after which it counts as hung
    may_hang: bool = False  # whether it hangs is what is asked


Said = CaseResult | Opened | Begun
