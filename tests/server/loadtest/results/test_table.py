"""What is printed and what stands in the CSV."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from server.loadtest.results.client_load import ClientLoad
from server.loadtest.results.leaks import LeakCheck
from server.loadtest.results.measures import Record
from server.loadtest.results.table import aligned, latency_rows, milliseconds, result_text, write_csv
from tests.server.loadtest.examples import CAPACITY, drawn, result_of


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
    assert "how it is computed" not in result_text(result), "the answer stays on the screen"
    text = result_text(result, formulas=True)
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
    text = result_text(result_of(steps, {"ttft": 1.0}))
    assert text.endswith("highest load that was carried: 2 req/s") and "ttft.p99, ms" in text
    assert "carried" not in result_text(result_of(steps)), "without an objective nobody knows"


def test_percentiles_of_few_requests_are_marked() -> None:
    """A p95 needs 20, a p99 100; of itl's many values of few requests, too."""
    few, many = (latency_rows(step.summary.latencies, step.summary.requests)
                 for step in result_of([("x", 1.0, drawn(30)), ("y", 1.0, drawn(100))]).steps)  # fmt: skip
    assert all(row[-2].endswith("*") and not any("*" in cell for cell in [*row[:-2], row[-1]]) for row in few)
    assert not any("*" in cell for row in many for cell in row)
    assert "itl" in {row[0] for row in few} and "1/(1-q)" in result_text(result_of([("x", 1.0, drawn(30))]))
    assert "1/(1-q)" not in result_text(result_of([("y", 1.0, drawn(100))]))


def test_the_good_share_has_an_interval() -> None:
    """R's binom.test(20, 20): 0.8315665 to 1."""
    assert "100.0% within the objectives (95 %: 83.2% to 100.0%;" in result_text(
        result_of([("x", 1.0, drawn(20))], {"ttft": 1.0})
    )


def test_connections_that_the_server_ended_are_told() -> None:
    result = replace(result_of([("x", 1.0, drawn(3))]), connections=5, reconnects={"idle": 2, "under a request": 1})
    assert "connections: 5 opened; the server closed 3: 2 idle, 1 under a request" in result_text(result)


def test_a_search_ends_with_its_answer() -> None:
    text = result_text(replace(result_of([("x", 1.0, drawn(3))]), capacity=CAPACITY))
    assert text.endswith("capacity for ttft.p99<=1s: from 7.1 to 8.8 req/s (kept at 7.1 req/s, missed at 8.8)")
    assert "ttft.p99, ms" in text and "640.0" in text and "1400" in text


def test_the_csv_has_a_line_for_each_request_and_a_column_for_each_stage(tmp_path: Path) -> None:
    records = [*drawn(2), Record(index=2, error="timeout")]
    write_csv(result_of([("x", 1.0, records)]), tmp_path / "run.csv")
    with (tmp_path / "run.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3
    assert float(rows[0]["ttft"]) == pytest.approx(records[0].ttft, abs=1e-6)
    assert rows[0]["stage_queue"] == "0.001" and rows[2]["stage_queue"] == ""
    assert rows[2]["error"] == "timeout" and rows[2]["first"] == "" and rows[0]["output_tokens"] == "8"
