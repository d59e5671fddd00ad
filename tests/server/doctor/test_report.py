"""What the doctor prints."""

import json

from configs.version import version
from server.doctor.finding import Finding, fail, ok, skip, warn
from server.doctor.report import as_json, as_lines, as_table

FOUND = [ok("driver", "25.5.1"), fail("NPUs", "none", "Put one in."), warn("memory", "little", "End something.")]
REST: list[Finding] = [skip("chip", "not asked")]


def test_the_table() -> None:
    assert as_table([*FOUND, *REST], "npu").splitlines() == [
        f"Pixelferry {version()}, looked at for --device npu",
        "  ok    driver            25.5.1",
        "  FAIL  NPUs              none",
        "                          -> Put one in.",
        "  warn  memory            little",
        "                          -> End something.",
        "  -     chip              not asked",
        "1 fault and 1 warning",
    ]
    assert as_table([*FOUND, FOUND[1]], "npu").endswith("\n2 faults and 1 warning")
    assert as_table(REST, "cpu").endswith("\nnothing is wrong")


def test_long_lines_are_folded_under_their_column() -> None:
    lines = as_table([fail("a", "word " * 40, "word " * 40)], "npu").splitlines()
    assert max(map(len, lines)) <= 110 and {line[:26].strip() for line in lines[2:-1]} == {""}


def test_json() -> None:
    said = json.loads(as_json(FOUND, "npu"))
    assert (said["version"], said["device"], said["verdict"]) == (version(), "npu", "fail")
    assert said["findings"][1] == {
        "check": "NPUs", "verdict": "fail", "found": "none", "remedy": "Put one in.", "follows": "",
    }  # fmt: skip
    assert json.loads(as_json(FOUND[2:], "npu"))["verdict"] == "warn"
    assert json.loads(as_json(REST, "npu"))["verdict"] == "ok"


def test_lines_are_what_is_wrong() -> None:
    assert list(as_lines([*FOUND, *REST])) == [
        "doctor: NPUs: none. Put one in.",
        "doctor: memory: little. End something.",
    ]
