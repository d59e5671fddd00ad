"""What the self-test prints, row by row, and the file that is sent back: short, and without a name or path of here."""

import platform
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec

from configs.version import commit, version
from model.selftest.rows import CaseResult, Opened

FORMAT = "pixelferry-selftest-1"
_PATH = re.compile(r"(?<![\w.])/(?:[^\s/'\":,;()]+/)*[^\s/'\":,;()]+")
_NOTE, _ROWS = 200, 1000  # characters and rows: so many of them are less than 1 MB
_SIGNS = {"pass": "ok", "fail": "FAIL", "skip": "-", "told": "i"}


Observed = tuple[dict[str, str], list[tuple[str, str]]]
"""What the doctor says of this machine: variables, and (check, verdict) of each finding."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    format: str = FORMAT
    pixelferry: str
    commit: str  # `unknown` in a checkout
    date: str
    device: str
    quick: bool
    versions: dict[str, str]
    variables: dict[str, str]  # which of those that matter to an NPU are set, some with their values
    doctor: list[tuple[str, str]]  # each check and its verdict
    verdict: str
    counts: dict[str, int]
    seconds: float
    rows: tuple[CaseResult, ...]


def report(
    opened: Opened | None,
    rows: Sequence[CaseResult],
    quick: bool,
    seconds: float,
    asked: str,
    seen: Observed = ({}, []),
) -> Report:
    variables, doctor = seen
    counts: Counter[str] = Counter(row.verdict for row in rows)
    return Report(
        pixelferry=version(),
        commit=commit(),
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        device=opened.device if opened else asked,
        quick=quick,
        versions=opened.versions if opened else {},
        variables=variables,
        doctor=doctor,
        verdict="fail" if counts["fail"] or not counts["pass"] else "pass",
        counts=dict(counts),
        seconds=round(seconds, 1),
        rows=tuple(rows[:_ROWS]),
    )


def unnamed(row: CaseResult, model: Path | None = None) -> CaseResult:
    """Without what an error may say of the host or of directories; model: the checkpoint that was given."""
    note = row.note
    for private in (platform.node(), *((str(model.absolute()), str(model)) if model else ()), str(Path.home())):
        if len(private) > 1:
            note = note.replace(private, "...")
    note = "".join(part for part in _PATH.sub("...", note) if part.isprintable())
    return msgspec.structs.replace(row, note=note[:_NOTE])


def as_json(found: Report) -> bytes:
    return msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n"


def as_head(opened: Opened) -> str:
    known = ", ".join(f"{name} {text}" for name, text in opened.versions.items())
    return f"Pixelferry {version()} on {opened.device} ({known})"


def as_line(row: CaseResult) -> str:
    error = "" if row.error is None else f"{row.error:.1e}"
    allowed = "" if row.tolerance is None else f"/{row.tolerance:.0e}"
    taken = "" if row.microseconds is None else f"{row.microseconds:,.0f} us"
    figures = ", ".join(f"{value:,.4g} {name}" for name, value in row.figures.items())
    words = "; ".join(part for part in (figures, row.note) if part)
    text = f"  {_SIGNS[row.verdict]:<5}{row.name:<21} {row.case:<48} {row.dtype:<9}{error:>8}{allowed:<6}{taken:>13}"
    return f"{text}  {words}".rstrip()


def as_matrix(rows: Sequence[CaseResult]) -> str:
    """Passed of tried, for each thing and dtype."""
    tried = [row for row in rows if row.verdict in ("pass", "fail")]
    dtypes = [dtype for dtype in ("float32", "float16", "bfloat16", "") if any(row.dtype == dtype for row in tried)]
    lines = [f"{'':<24}" + "".join(f"{dtype or 'any':>12}" for dtype in dtypes)]
    for name in dict.fromkeys(row.name for row in tried):
        cells = []
        for dtype in dtypes:
            mine = [row.verdict for row in tried if (row.name, row.dtype) == (name, dtype)]
            cells.append(f"{mine.count('pass')}/{len(mine)}" if mine else "")
        mark = "  FAIL" if any(row.name == name and row.verdict == "fail" for row in tried) else ""
        lines.append(f"{name:<24}" + "".join(f"{cell:>12}" for cell in cells) + mark)
    return "\n".join(lines)


def as_end(found: Report) -> str:
    failed = [" ".join(word for word in (row.name, row.case, row.dtype) if word) for row in found.rows
              if row.verdict == "fail"]  # fmt: skip
    counts = f"{found.counts.get('pass', 0)} passed, {len(failed)} failed, {found.counts.get('skip', 0)} not here"
    ending = f"{counts}, in {found.seconds:.0f} s: {found.verdict}"
    return "\n".join([*(f"failed: {one}" for one in failed), ending])
