"""Plans: one for each load, with its times and its requests."""

from pathlib import Path

import pytest

from server.loadtest.options import read_options
from server.loadtest.plans import AHEAD, plans_of


def test_a_sweep_of_rates_has_a_plan_for_each() -> None:
    one, two = plans_of(read_options(["--rate", "2,4", "--arrivals", "constant", "--seconds", "5"]))
    assert (one.label, two.label, one.load, two.load) == ("2 req/s constant", "4 req/s constant", 2.0, 4.0)
    assert one.dues is not None and two.dues is not None
    assert (len(one.dues), len(two.dues), len(one.drawn)) == (10, 20, 10)
    assert one.drawn[0].prompt != two.drawn[0].prompt, "a step sends requests of its own"


def test_a_ramp_begins_with_nothing() -> None:
    (plan,) = plans_of(read_options(["--rate", "10", "--arrivals", "constant", "--seconds", "6", "--ramp", "4"]))
    assert plan.dues is not None
    assert sum(due < 4 for due in plan.dues) == 20 and len(plan.dues) == 40


def test_a_closed_loop_has_streams_and_a_count() -> None:
    (plan,) = plans_of(read_options(["--concurrency", "3", "--requests", "7"]))
    assert (plan.streams, plan.dues, len(plan.drawn)) == (3, None, 7)
    (endless,) = plans_of(read_options(["--concurrency", "3", "--seconds", "60"]))
    assert len(endless.drawn) == AHEAD
    first, again = endless.request(0), endless.request(AHEAD)
    assert again.index == AHEAD and again.prompt != first.prompt


def test_a_trace_gives_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("at,input_length,output_length\n5,3,9\n7,4,\n8,1,1\n")
    (plan,) = plans_of(read_options(["--trace", str(path), "--trace-speed", "2", "--requests", "2"]))
    assert plan.dues == [0.0, 1.0] and [ask.max_tokens for ask in plan.drawn] == [9, 32]
    assert plan.load == 2.0


def test_a_list_is_sent_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "list.jsonl"
    path.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    (plan,) = plans_of(read_options(["--requests-file", str(path), "--requests", "3", "--max-tokens", "5"]))
    assert [(ask.prompt, ask.max_tokens) for ask in plan.drawn] == [("one", 5), ("two", 5), ("one", 5)]


@pytest.mark.parametrize("seed", ["0", "1"])
def test_a_seed_gives_the_same_plan(seed: str) -> None:
    (first,), (again,) = (plans_of(read_options(["--rate", "5", "--requests", "9", "--seed", seed])) for _ in range(2))
    assert first.dues == again.dues and [ask.prompt for ask in first.drawn] == [ask.prompt for ask in again.drawn]
    (other,) = plans_of(read_options(["--rate", "5", "--requests", "9", "--seed", "7"]))
    assert first.dues != other.dues
