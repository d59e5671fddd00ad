"""A section in a process of its own: what it says arrives, and an end that it did not choose is a row."""

import sys
from pathlib import Path

from configs.settings import child_env
from model.selftest.rows import CaseResult, Said
from server.selftest.children import run_section
from tests.server.tables import each_of

BEGIN = """
import sys, time, os, signal
def say(text): sys.stdout.write(text + "\\n"); sys.stdout.flush()
say('{"type": "Begun", "section": "s", "name": "one row", "seconds": SECONDS, "may_hang": MAY}')
"""
PASSED = """say('{"type": "CaseResult", "section": "s", "name": "one row", "verdict": "pass"}')\n"""


def heard(code: str, seconds: float = 30, may: str = "false") -> list[Said]:
    found: list[Said] = []
    program = BEGIN.replace("SECONDS", str(seconds)).replace("MAY", may) + code
    run_section("s", [sys.executable, "-c", program], child_env({}), found.append)
    return found


def test_what_is_said_arrives() -> None:
    assert heard(PASSED) == [CaseResult(section="s", name="one row", verdict="pass")]


@each_of(
    ("code", "note"),
    [("os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"), ("sys.exit(3)", "exit code 3")],
    ids=["crash", "exit"],
)
def test_an_end_names_where_it_was(code: str, note: str) -> None:
    (row,) = heard(code)
    assert row == CaseResult(section="s", name="one row", verdict="fail", note=f"the process ended: {note}")


@each_of(("may", "verdict"), [("false", "fail"), ("true", "told")])
def test_a_hang_is_ended(may: str, verdict: str) -> None:
    """It is a fault, unless whether it hangs is what was asked."""
    (row,) = heard("time.sleep(60)", seconds=0.3, may=may)
    assert isinstance(row, CaseResult) and (row.name, row.verdict) == ("one row", verdict) and "hangs" in row.note


def test_a_section_that_said_why_adds_nothing(tmp_path: Path) -> None:
    (row,) = heard(PASSED.replace('"pass"', '"fail"') + "sys.exit(1)")
    assert isinstance(row, CaseResult) and row.verdict == "fail" and row.note == ""
