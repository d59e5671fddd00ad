"""What is printed and what stands in the CSV."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from server.loadtest.results.client_load import ClientLoad
from server.loadtest.results.leaks import LeakCheck
from server.loadtest.results.measures import Record
from server.loadtest.results.table import aligned, milliseconds, result_text, write_csv
from tests.server.loadtest.examples import drawn, result_of


def test_times_have_three_digits() -> None:
    assert [milliseconds(value) for value in (0.00012, 0.0123, 0.5, 12.3456)] == ["0.12", "12.3", "500.0", "12346"]


def test_columns_are_aligned() -> None:
    assert aligned([["a", "10"], ["long", "9"]]) == ["  a     10", "  long   9"]


def test_a_run_is_told_with_its_formulas_warnings_and_failures() -> None:
    records = [*drawn(10), Record(index=10, error="429 queue_full")]
    records[0].correct = False
    result = replace(
        result_of([("2 streams", 2.0, records)], {"ttft": 0.5}),
        client=ClientLoad(warnings=["the client was busy"]), notes=["a note"],
        findings=[LeakCheck("path files", "leaked", "1 more")], leak="leaked",
    )  # fmt: skip
    text = result_text(result)
    for said in (
        "2 streams: 11 requests", "10 answered, 1 failed", "within the objectives", "1 x 429 queue_full",
        "answers checked: 1, wrong: 1", "server afterwards: leaked", "leaked: path files: 1 more",
        "WARNING: the client was busy", "note: a note", "ttft: first event that carries content - sent",
        "(last event - first content) / (output tokens - 1)", "type 7", "FAILED: leak: path files",
        "prepare.image.decode", "hit rates: tokens 25.0% (60 of 240), media unknown",
    ):  # fmt: skip
        assert said in text, said


def test_objectives_are_told_only_where_there_are_some() -> None:
    said = "within the objectives"
    assert said not in result_text(result_of([("x", 1.0, drawn(3))]))
    assert said in result_text(result_of([("x", 1.0, drawn(3))], {"ttft": 1.0}))


def test_a_sweep_names_the_load_that_was_carried() -> None:
    steps = [("1 req/s", 1.0, drawn(5)), ("2 req/s", 2.0, drawn(5))]
    assert "highest load that was carried: 2 req/s" in result_text(result_of(steps, {"ttft": 1.0}))
    assert "carried" not in result_text(result_of(steps)), "without an objective nobody knows"


def test_the_csv_has_a_line_for_each_request_and_a_column_for_each_stage(tmp_path: Path) -> None:
    records = [*drawn(2), Record(index=2, error="timeout")]
    write_csv(result_of([("x", 1.0, records)]), tmp_path / "run.csv")
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert float(rows[0]["ttft"]) == pytest.approx(records[0].ttft, abs=1e-6)
    assert rows[0]["stage_queue"] == "0.001" and rows[2]["stage_queue"] == ""
    assert rows[2]["error"] == "timeout" and rows[2]["first"] == "" and rows[0]["output_tokens"] == "8"
