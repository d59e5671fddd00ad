"""A run as JSON and back, why it fails, and the highest load that was carried."""

from dataclasses import replace
from pathlib import Path

import pytest

from server.loadtest.results.leaks import LeakCheck
from server.loadtest.results.measures import Record, RequirementResult
from server.loadtest.results.result import read_json, write_json
from tests.server.loadtest.examples import drawn, result_of
from tests.tables import each_of

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


def test_a_sweep_that_is_not_monotonic_says_so() -> None:
    """As one was measured: 100, 50, 71.6 and 32.8 % at 2, 4, 8 and 16 req/s (newcomers.md, row 5)."""
    fast, slow = drawn(1), drawn(1, slower=20.0)
    shares = {"2": 1.0, "4": 0.5, "8": 0.716, "16": 0.328}
    steps = [(name, float(name), mixed(fast[0], slow[0], share)) for name, share in shares.items()]
    result = result_of(steps, {"ttft": 1.0})
    assert result.knee is not None and result.knee.label == "2"
    assert result.sweep_says == (
        "highest load that was carried: 2; not monotonic: 8 (71.6%) kept the objectives better than 4 (50.0%); "
        "above 2: unclear, repeat"
    )
    assert [result.step_verdict(step) for step in result.steps] == ["kept", *["unclear: repeat"] * 3]
    again = result_of([steps[1], steps[0], ("8", 8.0, mixed(fast[0], slow[0], 1.0))], {"ttft": 1.0})
    assert again.knee is not None and again.knee.label == "2", "8 kept it, but 4 did not"
    assert "not monotonic: 8 (100.0%)" in again.sweep_says
    even = result_of([steps[0], ("4", 4.0, mixed(fast[0], slow[0], 0.5)), ("8", 8.0, mixed(fast[0], slow[0], 0.53))],
                     {"ttft": 1.0})  # fmt: skip
    assert "monotonic" not in even.sweep_says and even.step_verdict(even.steps[2]) == "missed", "that is chance"


def mixed(fast: Record, slow: Record, share: float) -> list[Record]:
    """A thousand requests, this share of them fast, evenly."""
    kinds = [fast if int((n + 1) * share) > int(n * share) else slow for n in range(1000)]
    return [replace(kind, index=n, due=float(n), sent=float(n), first=n + (kind.first or 0.0) - kind.sent)
            for n, kind in enumerate(kinds)]  # fmt: skip


def test_too_few_requests_are_no_failure() -> None:
    few = RequirementResult("ttft.p99<=1s", "1 req/s", 0.5, False, 18, 100)
    result = replace(GOOD, outcomes=[few])
    assert result.failures == []
    assert result.unclear == ["ttft.p99<=1s in 1 req/s: 18 requests cannot tell; 100 are needed at least"]
