"""The committed result of `make wheels`: one table for each file of constraints, one row for each pin."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date

from constraints.pins import PYTHONS

NONE, UNUSED, UNPINNED = "none", "unused", "-"
HEADING = """\
# Which wheel each pin has on aarch64 with glibc 2.28. Written by `make wheels` on {today}; not to be edited.
# Who asks for it: `server`, or an `extra` alone. Then the oldest platform that its wheel takes, for each Python:
# `any`: no compiled code. `none`: no wheel, and an extra alone asks. `unused`: nothing asks there. `-`: not pinned.
"""
_FORMAT = "{:<31} {:<8}" + "{:<16}" * len(PYTHONS)
_ROW = re.compile(r"(\S+)==(\S+) +(server|extra)" + r" +(\S+)" * len(PYTHONS))


@dataclass(slots=True, kw_only=True)
class Row:
    """One pin. `by`: "server", "extra", or "" where nothing asks for it."""

    name: str
    version: str
    by: str = ""
    cells: dict[str, str] = field(default_factory=dict)  # by Python, those alone for which it is pinned


def written(tables: Mapping[str, Iterable[Row]], today: date) -> str:
    """The whole text; `tables` by path."""
    lines = [HEADING.format(today=today.isoformat())]
    for path, rows in tables.items():
        lines.append(_FORMAT.format(path, "for", *PYTHONS).rstrip())
        for row in sorted(rows, key=lambda row: (row.name, [python not in row.cells for python in PYTHONS])):
            cells = (row.cells.get(python, UNPINNED) for python in PYTHONS)
            lines.append(_FORMAT.format(f"{row.name}=={row.version}", row.by, *cells).rstrip())
        lines.append("")
    return "\n".join(lines)


def read(text: str) -> dict[str, list[Row]]:
    """What `written` wrote. Raises ValueError for a line that it does not write."""
    tables: dict[str, list[Row]] = {}
    rows: list[Row] = []
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if line.split()[1:] == ["for", *PYTHONS]:
            rows = tables.setdefault(line.split()[0], [])
            continue
        match = _ROW.fullmatch(line)
        if match is None:
            raise ValueError(f"not a row: {line!r}")
        name, version, by, *cells = match.groups()
        held = {python: cell for python, cell in zip(PYTHONS, cells, strict=True) if cell != UNPINNED}
        rows.append(Row(name=name, version=version, by=by, cells=held))
    return tables
