"""What the doctor prints: a table for people, JSON for programs, lines for a log."""

import json
import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from configs.serve import Device
from configs.version import version
from server.doctor.finding import Finding

_WIDTH = 110
_SIGNS = {"ok": "ok", "warn": "warn", "fail": "FAIL", "skip": "-"}


def as_table(found: Sequence[Finding], device: Device) -> str:
    """A row for each finding, its remedy below it."""
    lines = [f"Pixelferry {version()}, looked at for --device {device}"]
    for finding in found:
        if finding.follows:  # whose remedy stands above
            lines += _wrapped(f"{'':<7} follows: {finding.check:<17} ", finding.found)
            continue
        lines += _wrapped(f"  {_SIGNS[finding.verdict]:<5} {finding.check:<17} ", finding.found)
        if finding.remedy:
            lines += _wrapped(f"{'':<25} -> ", finding.remedy)
    return "\n".join([*lines, _verdict(found)])


def as_json(found: Sequence[Finding], device: Device) -> str:
    """The verdict is that of the worst finding."""
    verdicts = [finding.verdict for finding in found]
    worst = next((verdict for verdict in ("fail", "warn") if verdict in verdicts), "ok")
    rows = [msgspec.to_builtins(finding) for finding in found]
    return json.dumps({"version": version(), "device": device, "verdict": worst, "findings": rows}, indent=2)


def as_lines(found: Sequence[Finding]) -> Iterator[str]:
    """What is wrong, and nothing else."""
    for finding in found:
        if finding.remedy and not finding.follows:
            below = [one.check for one in found if one.follows == finding.check]
            also = f" From this follows what is said of {', '.join(below)}." if below else ""
            yield f"doctor: {finding.check}: {finding.found}. {finding.remedy}{also}"


def _wrapped(before: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=before, subsequent_indent=" " * len(before), break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip


def _verdict(found: Sequence[Finding]) -> str:
    """Faults that follow from others are not counted."""
    roots = [finding for finding in found if not finding.follows]
    counts = [sum(finding.verdict == verdict for finding in roots) for verdict in ("fail", "warn")]
    if not any(counts):
        return "nothing is wrong"
    words = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in zip(counts, ("fault", "warning"), strict=True) if n]
    return " and ".join(words)
