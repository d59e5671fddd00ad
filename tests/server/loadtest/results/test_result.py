"""A run as JSON and back, why it fails, and the highest load that was carried."""

from dataclasses import replace
from pathlib import Path

import pytest

from server.loadtest.results.leaks import LeakCheck
from server.loadtest.results.measures import RequirementResult
from server.loadtest.results.result import read_json, write_json
from tests.server.loadtest.examples import drawn, result_of
from tests.server.tables import each_of

GOOD = result_of([("1 req/s", 1.0, drawn(20))])


def test_json_gives_the_same_run_back(tmp_path: Path) -> None:
    write_json(GOOD, tmp_path / "run.json")
    assert read_json(tmp_path / "run.json") == GOOD


@each_of("text", ["", "{", '{"format": 1, "steps": 3}', '{"format": 99}'])
def test_what_is_no_run_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"x\.json"):
        read_json(path)


def test_a_good_run_does_not_fail() -> None:
    assert GOOD.failures == [] and GOOD.leak == "clean"


@each_of(
    ("change", "said"),
    [
        ({"outcomes": [RequirementResult("errors<=1%", "1 req/s", 0.5, False)]}, "missed in 1 req/s: errors<=1%"),
        (
            {"findings": [LeakCheck("path files", "leaked", "1 more than before")]},
            "leak: path files: 1 more than before",
        ),
        ({"steps": []}, "no request was answered"),
    ],
)
def test_each_reason_fails_a_run(change: dict[str, object], said: str) -> None:
    assert replace(GOOD, **change).failures == [said]  # type: ignore[arg-type]


def test_wrong_answers_fail_a_run() -> None:
    records = drawn(4)
    records[0].correct, records[1].correct = False, True
    assert result_of([("x", 1.0, records)]).failures == ["1 wrong answers"]


def test_the_knee_is_the_highest_load_that_kept_the_objectives() -> None:
    fast, slow = drawn(50), drawn(50, slower=20.0)
    swept = result_of([("1", 1.0, fast), ("4", 4.0, fast), ("8", 8.0, slow)], {"ttft": 1.0})
    assert swept.knee is not None and swept.knee.label == "4"
    assert result_of([("8", 8.0, slow)], {"ttft": 0.1}).knee is None
