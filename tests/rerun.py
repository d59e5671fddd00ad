"""What to run again: behind a run that failed, a command for each test that did, and one for each file of these.

As a plug-in of pytest, whose hook `pytest_terminal_summary` this is.
"""

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

MOST = 20  # failed tests that get a command
BEFORE = {"pages": "PYTHONPATH=build/pages "}  # of a mark's command
MORE = {"long": " --timeout 3600 -o faulthandler_timeout=0"}
BY_RAY = ".venv/bin/python -m tests.deploy.ray.run"  # which makes the namespaces


def left_out(addopts: Sequence[str]) -> list[str]:
    """The marks whose tests `make test` leaves out, by the `-m` among pytest's settings."""
    expression = addopts[addopts.index("-m") + 1] if "-m" in addopts else ""
    return re.findall(r"\bnot (\w+)", expression)


def command(python: str, words: str, keywords: Collection[str], marks: Sequence[str], expression: str) -> str:
    """keywords: of the test. expression: that of the run, for a test whose process died, which has no keywords."""
    own = [mark for mark in marks if mark in keywords]
    if "ray" in own:
        return f"{BY_RAY} {words}"
    marked = " and ".join(own) if own or keywords else expression
    before = "".join(BEFORE.get(mark, "") for mark in own)
    more = "".join(MORE.get(mark, "") for mark in own)
    return f"{before}{python} -m pytest -n 0{f' -m {shlex.quote(marked)}' if marked else ''}{more} {words}"


def lines(reports: Sequence[Any], python: str, marks: Sequence[str], expression: str) -> Iterator[str]:
    """A command for each test of these reports, and behind them one for each of their files."""
    found = {report.nodeid: frozenset(getattr(report, "keywords", ())) for report in reports}
    for test, keywords in [*found.items()][:MOST]:
        yield command(python, shlex.quote(test), keywords, marks, expression)
    if len(found) > MOST:
        yield f"and {len(found) - MOST} more"
    files = {test.partition("::")[0]: keywords for test, keywords in found.items() if "::" in test}
    if files:
        yield "where one passes alone, with its neighbours:"
    for file, keywords in [*files.items()][:MOST]:
        yield command(python, shlex.quote(file), keywords, marks, expression)


def here(root: Path) -> str:
    """The Python that runs, as one writes it in the repository's root."""
    python = Path(sys.executable)
    return os.path.relpath(python, root) if python.is_relative_to(root) else str(python)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Behind the summary, where something failed."""
    reports = [report for kind in ("failed", "error") for report in terminalreporter.stats.get(kind, ())]
    if not reports:
        return
    addopts = config.getini("addopts")
    given = str(config.option.markexpr)
    expression = "" if given in addopts else given
    terminalreporter.section("to run it again")
    for line in lines(reports, here(config.rootpath), left_out(addopts), expression):
        terminalreporter.line(line)
