"""What is said to be run again: commands that find the tests that failed."""

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rerun import MOST, here, left_out, lines, pytest_terminal_summary

REPO = Path(__file__).resolve().parents[1]
MARKS = ["long", "pages", "ray", "faults"]
PYTEST = ".venv/bin/python -m pytest -n 0"


def report(test: str, *keywords: str) -> Any:
    return SimpleNamespace(nodeid=test, keywords=dict.fromkeys((*keywords, "test"), 1))


def told(*reports: Any, expression: str = "") -> list[str]:
    return [*lines(reports, ".venv/bin/python", MARKS, expression)]


def test_the_marks_of_the_project_are_known(pytestconfig: pytest.Config) -> None:
    """Each mark that `make test` leaves out, and no word more."""
    names = {line.partition(":")[0] for line in pytestconfig.getini("markers")}
    found = left_out(pytestconfig.getini("addopts"))
    assert found and {*found} <= names and left_out([]) == []


@pytest.mark.parametrize(
    ("keywords", "command"),
    [
        ([], f"{PYTEST} 'a.py::test[x y]'"),
        (["faults"], f"{PYTEST} -m faults 'a.py::test[x y]'"),
        (
            ["faults", "long"],
            f"{PYTEST} -m 'long and faults' --timeout 3600 -o faulthandler_timeout=0 'a.py::test[x y]'",
        ),
        (["pages"], f"PYTHONPATH=build/pages {PYTEST} -m pages 'a.py::test[x y]'"),
        (["ray"], ".venv/bin/python -m tests.deploy.ray.run 'a.py::test[x y]'"),
    ],
    ids=str,
)
def test_a_command_names_the_mark_without_which_nothing_runs(keywords: Sequence[str], command: str) -> None:
    assert told(report("a.py::test[x y]", *keywords))[0] == command


def test_a_file_is_told_once_and_a_test_that_failed_twice_too() -> None:
    reports = [report("a.py::one"), report("a.py::one"), report("a.py::two"), SimpleNamespace(nodeid="b.py")]
    found = told(*reports)
    assert found[:3] == [f"{PYTEST} {test}" for test in ("a.py::one", "a.py::two", "b.py")]
    assert found[3].endswith(":") and found[4:] == [f"{PYTEST} a.py"]


def test_of_a_process_that_died_the_runs_own_expression_is_told() -> None:
    died = SimpleNamespace(nodeid="a.py::one", keywords=())
    assert told(died, expression="faults or ranks")[0] == f"{PYTEST} -m 'faults or ranks' a.py::one"
    assert told(died)[0] == f"{PYTEST} a.py::one"


def test_of_many_the_first_are_told() -> None:
    found = told(*(report(f"a.py::n{n}") for n in range(MOST + 3)))
    assert found[MOST] == "and 3 more" and len(found) == MOST + 3


def test_a_run_that_passed_says_nothing(pytestconfig: pytest.Config) -> None:
    pytest_terminal_summary(SimpleNamespace(stats={"passed": [report("a.py::one")]}), pytestconfig)


@pytest.mark.process
def test_what_is_told_finds_the_test(pytestconfig: pytest.Config) -> None:
    """One that `make test` leaves out: pytest collects it, and it alone."""
    test = "tests/pages/test_small_windows.py::test_a_low_window_holds_the_form"
    marks = left_out(pytestconfig.getini("addopts"))
    line = next(lines([report(test, "pages")], here(REPO), marks, ""))
    variables, _, words = line.partition(here(REPO))
    name, _, value = variables.strip().partition("=")
    done = subprocess.run(
        [sys.executable, *shlex.split(words), "--collect-only", "--quiet"],
        cwd=REPO, env={**os.environ, name: value}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and done.stdout.splitlines()[0] == test, done.stdout + done.stderr
