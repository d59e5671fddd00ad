"""What is printed and what is written: rows, the matrix, the verdict, and no name of this host."""

import json
import platform
from pathlib import Path

import pytest

from model.selftest.rows import CaseResult, Opened
from server.selftest.report import as_end, as_json, as_line, as_matrix, report, unnamed
from tests.server.tables import each_of

GOOD = CaseResult(
    section="operators", name="gelu", case="7 x 384", dtype="bfloat16", verdict="pass", error=0.002, tolerance=0.01,
    microseconds=12.4,
)  # fmt: skip
BAD = CaseResult(
    section="operators", name="rms_norm", case="1 x 64", dtype="float16", verdict="fail", note="not finite"
)
SKIPPED = CaseResult(section="graphs", name="demo model", verdict="skip", note="not here")
OPENED = Opened(device="npu:0", versions={"torch": "2.10.0", "cann": "9.1.0"})


def test_a_line_has_error_tolerance_and_time() -> None:
    assert as_line(GOOD).split() == ["ok", "gelu", "7", "x", "384", "bfloat16", "2.0e-03/1e-02", "12", "us"]


def test_the_matrix_counts_by_dtype_and_marks_what_failed() -> None:
    lines = [line.split() for line in as_matrix([GOOD, GOOD, BAD, SKIPPED]).splitlines()]
    assert lines == [["float16", "bfloat16"], ["gelu", "2/2"], ["rms_norm", "0/1", "FAIL"]]


def test_the_end_names_the_failed_rows() -> None:
    found = report(OPENED, [GOOD, BAD, SKIPPED], True, 61.0, "npu")
    assert as_end(found) == "failed: rms_norm 1 x 64 float16\n1 passed, 1 failed, 1 not here, in 61 s: fail"


@each_of(("rows", "verdict"), [([GOOD, SKIPPED], "pass"), ([GOOD, BAD], "fail"), ([SKIPPED], "fail")])
def test_nothing_tried_is_no_success(rows: list[CaseResult], verdict: str) -> None:
    assert report(OPENED, rows, False, 1.0, "npu").verdict == verdict


def test_the_file_names_versions_and_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "node", lambda: "atlas-17.lan")
    note = f"cannot open {Path.home()}/x on atlas-17.lan"
    row = unnamed(CaseResult(section="models", name="demo model", verdict="fail", note=note))
    seen = ({"PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True", "PATH": "set"}, [("driver", "ok"), ("NPUs", "fail")])
    text = as_json(report(OPENED, [row, GOOD], False, 1.0, "npu", seen)).decode()
    assert "atlas-17" not in text and str(Path.home()) not in text and "cannot open .../x on ..." in text
    written = json.loads(text)
    assert written["versions"] == {"torch": "2.10.0", "cann": "9.1.0"} and written["device"] == "npu:0"
    assert (written["variables"], written["doctor"]) == (seen[0], [["driver", "ok"], ["NPUs", "fail"]])
    assert (
        written["commit"] and written["counts"] == {"fail": 1, "pass": 1} and written["rows"][1]["microseconds"] == 12.4
    )


@each_of(
    ("note", "shown"),
    [
        ("CheckpointError: /data/of/eve/model.safetensors: tensor 'a' is missing", "CheckpointError: ...: tensor"),
        ("cannot open '/opt/x/key.pem'", "cannot open '...'"),
        ("config.json in my models/Qwen2 VL is broken", "config.json in ... is broken"),
        ("12 GB/s, 3 tokens/s, 2e-03/1e-02", "12 GB/s, 3 tokens/s, 2e-03/1e-02"),
        ("one\n\x00two", "onetwo"),
    ],
)
def test_no_path_is_sent_back(note: str, shown: str) -> None:
    row = unnamed(CaseResult(section="given", name="n", verdict="fail", note=note), Path("my models/Qwen2 VL"))
    assert row.note.startswith(shown) and "eve" not in row.note


def test_the_file_is_below_a_megabyte_whatever_is_said() -> None:
    rows = [
        unnamed(CaseResult(section="operators", name="n" * 40, case="c" * 60, verdict="fail", error=1e-3 / 3,
                           tolerance=1e-2, microseconds=1e6 / 3, figures={"us in all": 1e6 / 3}, note="字" * 5000))
    ] * 5000  # fmt: skip
    found = report(OPENED, rows, False, 1.0, "npu")
    assert len(as_json(found)) < 1_000_000 and found.counts == {"fail": 5000} and len(found.rows) == 1000
