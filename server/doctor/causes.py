"""Which fault is the cause of which: one root, and below it what its remedy mends as well."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from server.doctor.finding import Finding

# Whose fault may be the cause of a check's own, the likeliest first.
_CAUSES: Mapping[str, tuple[str, ...]] = {
    "driver libraries": ("driver",),
    "NPUs": ("driver",),
    "device files": ("driver",),
    "ASCEND_OPP_PATH": ("CANN",),
    "CANN paths": ("CANN",),
    "CANN parts": ("CANN", "ASCEND_OPP_PATH"),
    "CANN libraries": ("CANN", "CANN paths"),
    "operators": ("CANN", "ASCEND_OPP_PATH", "CANN parts"),
    "cards": ("card", "NPUs"),
    "chip": (
        "CANN", "CANN paths", "CANN libraries", "driver", "driver libraries", "NPUs", "device files", "rights", "card",
    ),
}  # fmt: skip


def with_causes(found: Sequence[Finding]) -> list[Finding]:
    """Each fault that follows from another names it, and stands below it."""
    faults = {one.check for one in found if one.verdict == "fail"}

    def root(check: str) -> str:
        cause = next((cause for cause in _CAUSES.get(check, ()) if cause in faults), None)
        return check if cause is None else root(cause)

    marked = [
        replace(one, follows=cause) if one.verdict == "fail" and (cause := root(one.check)) != one.check else one
        for one in found
    ]
    return [line for one in marked if not one.follows for line in (one, *_below(one, marked))]


def _below(cause: Finding, found: Sequence[Finding]) -> list[Finding]:
    return [one for one in found if cause.verdict == "fail" and one.follows == cause.check]
