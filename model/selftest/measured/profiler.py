"""Which operators a model launches, and on which cores they run: the table that torch_npu.profiler writes."""

import csv
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory

from model.device import record_profile
from model.selftest.rows import CaseResult
from model.selftest.teller import Teller

SECTION = "profile"
TABLE = "op_statistic.csv"  # of msprof, which comes with CANN
_SECONDS = 600.0  # the table is made by programs of CANN's, which read all that was recorded
_MOST = 100  # rows
_NAME = "operators and cores"


def check_profile(
    tell: Teller, device_type: str, name: str, opened: Callable[[], AbstractContextManager[Callable[[], object]]]
) -> None:
    """A row for each operator and kind of core of one call of what `opened` gives. name: of the model."""
    if device_type != "npu":
        tell.skip(_NAME, "not here: a profile tells cores of NPUs alone")
        return

    def profiled() -> CaseResult:
        with opened() as run, TemporaryDirectory() as folder:
            record_profile(Path(folder), run)
            found = sorted(Path(folder).rglob(TABLE))
            rows = rows_of(found[0].read_text(encoding="utf-8")) if found else []
        for row in rows[:_MOST]:
            tell.send(row)
        return _sum_of(name, rows)

    tell.attempt(_NAME, profiled, name, seconds=_SECONDS)


def rows_of(table: str) -> list[CaseResult]:
    """One for each operator and kind of core, the longest first. Raises KeyError for a table without these columns."""
    lines = sorted(csv.DictReader(table.splitlines()), key=lambda line: -float(line["Total Time(us)"]))
    return [
        CaseResult(
            section=SECTION, name=line["OP Type"], case=line["Core Type"], verdict="told",
            microseconds=float(line["Avg Time(us)"]),
            figures={"calls": float(line["Count"]), "us in all": float(line["Total Time(us)"])},
        )
        for line in lines
    ]  # fmt: skip


def _sum_of(name: str, rows: Sequence[CaseResult]) -> CaseResult:
    if not rows:
        return CaseResult(
            section=SECTION, name=_NAME, case=name, verdict="skip",
            note=f"not here: torch_npu.profiler left no {TABLE}, for which it needs msprof of CANN",
        )  # fmt: skip
    figures: dict[str, float] = {}
    for row in rows:
        figures[f"us on {row.case}"] = figures.get(f"us on {row.case}", 0.0) + row.figures["us in all"]
    slow = ", ".join(sorted({row.name for row in rows if row.case == "AI_CPU"}))
    return CaseResult(
        section=SECTION, name=_NAME, case=name, verdict="told", figures=figures,
        note=f"on the AI CPU: {slow or 'none'}",
    )  # fmt: skip
