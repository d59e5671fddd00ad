"""Which versions belong together."""

import re
from pathlib import Path

from server.doctor.versions import ROWS, judge
from tests.npu.pairs import PAIRS
from tests.server.tables import each_of

REPO = Path(__file__).resolve().parents[3]


@each_of(
    ("torch", "torch_npu", "cann", "verdict", "word"),
    [
        ("2.10.0", "2.10.0.post4", "9.1.0", "ok", "a known row"),
        ("2.13.0+cpu", "2.13.0", "9.1.0", "ok", "a known row"),
        ("2.13.0", "2.13.0", None, "ok", "CANN unknown"),
        ("2.12.0", "2.12.0", "9.1.0", "warn", "this project has not run"),
        ("2.10.0", "2.10.0.post7", "9.1.0", "warn", "this project has not run"),
        ("2.10.0", "2.10.0.post4", "9.2.0-beta.2", "warn", "belongs to CANN 9.1.0"),
        ("2.10.0", "2.10.0.post4", "8.5.1", "fail", "belongs to CANN 9.1.0"),
        ("2.10.0", "2.10.0.post4", "8.2.RC1", "fail", "belongs to CANN 9.1.0"),
        ("2.13.0", "2.10.0.post4", "9.1.0", "fail", "built for torch 2.10.0"),
        ("2.7.1", "2.7.1.post8", "9.1.0", "warn", "no known row"),
        ("2.10.0", None, "9.1.0", "fail", "torch_npu is not installed"),
        (None, "2.10.0.post4", "9.1.0", "fail", "torch is not installed"),
    ],
)
def test_versions(torch: str | None, torch_npu: str | None, cann: str | None, verdict: str, word: str) -> None:
    found = judge(torch, torch_npu, cann)
    assert (found.check, found.verdict) == ("versions", verdict) and word in found.found
    assert bool(found.remedy) == (verdict != "ok")


def test_the_rows_that_were_tried_are_those_of_the_tests() -> None:
    assert {row.tried for row in ROWS if row.tried} == {pair.torch_npu for pair in PAIRS}


def test_the_first_row_is_the_one_that_is_installed() -> None:
    pinned = (REPO / "constraints" / "ascend.txt").read_text(encoding="utf-8")
    assert f"\ntorch_npu=={ROWS[0].tried}\n" in pinned and f"CANN {ROWS[0].cann}:" in pinned


def test_the_page_has_the_rows_that_were_tried() -> None:
    page = (REPO / "docs" / "npu.md").read_text(encoding="utf-8")
    tried = [row.tried for row in ROWS if row.tried]
    assert [re.search(rf"^\| {re.escape(version)} \| ", page, re.MULTILINE) is not None for version in tried] == [
        True
    ] * 2
