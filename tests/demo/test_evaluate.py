"""The accuracy card: what it says of each row, where it is written, and that the shipped page has the exam's goals."""

import re
from pathlib import Path

import pytest

from demo import evaluate
from demo.exam import CHINESE_GOAL, ROWS
from demo.examiner import Result
from tests.demo.test_exam import marked, row

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]


def test_card_says_what_was_met_and_missed() -> None:
    good = Result(row=row("count"), marked=(marked(True),) * 19 + (marked(False),))
    poor = Result(row=row("count_zh"), marked=(marked(True),) * 8 + (marked(False),) * 2)
    boxes = Result(row=row("where"), marked=(marked(True, 0.75), marked(False, 0.25)))
    text = evaluate.card([good, poor, boxes], command="ask", model="weights", day="2026-01-02")
    assert "| counting to five | 19/20 | 95.0% | 76.4% to 99.1% | 95%, met |" in text
    assert "| Chinese: all of these | 8/10 | 80.0% | 49.0% to 94.3% | 85%, missed |" in text
    assert "0.50 (boxes at IoU 0.5)" in text and text.startswith("2026-01-02, `ask`, weights")


def test_only_what_is_between_the_marks_is_written_anew() -> None:
    page = f"before\n{evaluate.BEGIN}\nold\n{evaluate.END}\nafter"
    assert evaluate.filled(page, "new") == f"before\n{evaluate.BEGIN}\n\nnew\n\n{evaluate.END}\nafter"
    with pytest.raises(ValueError, match="needs the lines"):
        evaluate.filled("no marks", "new")
    evaluate.filled((REPO / "docs" / "demo-model.md").read_text(encoding="utf-8"), "")


def test_the_page_has_the_goals_of_the_exam_and_names_each_row_that_misses_its_own() -> None:
    page = (REPO / "docs" / "demo-model.md").read_text(encoding="utf-8")
    goals = {one.label: one.goal for one in ROWS} | {"Chinese: all of these": CHINESE_GOAL}
    _, found, why = page.partition("**Below its goals.**")
    why = why.partition("\n**")[0]
    assert found
    for label, goal in goals.items():
        [(right, asked)] = re.findall(rf"^\| {re.escape(label)} \| (\d+)/(\d+) \|", page, re.MULTILINE)
        columns = evaluate.counts(int(right), int(asked), goal)
        assert f"| {' | '.join((label, *columns))} |\n" in page
        if "missed" in columns[-1]:
            assert columns[1].removesuffix("%") in why, label
