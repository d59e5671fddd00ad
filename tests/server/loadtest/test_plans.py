"""Plans: one for each load; arrival processes by their statistics, a rising rate by its integral, traces by lines."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from server.loadtest.options import read_options
from server.loadtest.plans import AHEAD, Arrival, arrivals, begun, plans_of, read_trace, time_of, unit_arrivals
from tests.server.tables import each_of

N = 20_000


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


def test_a_warm_up_sends_none_of_the_media_that_are_unique() -> None:
    flags = ["--mix", "image", "--image-sizes", "8x8", "--concurrency", "1,2", "--requests", "3", "--warmup", "2"]
    one, two = plans_of(read_options([*flags, "--unique-media"]))
    media = [bytes(ask.media[0].data) for ask in [*one.warm_up(2), *one.drawn, *two.drawn]]
    assert len(set(media)) == len(media) == 8
    (plain, _) = plans_of(read_options(flags))
    assert plain.warm_up(4) == [plain.request(index) for index in range(4)]


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


@each_of("seed", ["0", "1"])
def test_a_seed_gives_the_same_plan(seed: str) -> None:
    (first,), (again,) = (plans_of(read_options(["--rate", "5", "--requests", "9", "--seed", seed])) for _ in range(2))
    assert first.dues == again.dues and [ask.prompt for ask in first.drawn] == [ask.prompt for ask in again.drawn]
    (other,) = plans_of(read_options(["--rate", "5", "--requests", "9", "--seed", "7"]))
    assert first.dues != other.dues


def arrived(*flags: str, rate: float, seed: int = 0) -> list[float]:
    return [one.at for one in arrivals(read_options(list(flags)), rate, random.Random(seed))]


def intervals(process: str, burstiness: float = 1.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    flags = ("--arrivals", process, "--burstiness", str(burstiness), "--requests", str(N))
    return np.diff(arrived(*flags, rate=5.0, seed=1))


def test_constant_is_constant() -> None:
    assert arrived("--arrivals", "constant", "--requests", "5", rate=4) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_has_exponential_intervals() -> None:
    found = intervals("poisson")
    assert found.mean() == pytest.approx(0.2, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(1.0, rel=0.03)
    # Kolmogorov and Smirnov's distance to the exponential distribution, 1 % level: 1.63 / sqrt(n).
    ordered = np.sort(found)
    distance = np.abs(1 - np.exp(-5 * ordered) - (np.arange(len(ordered)) + 0.5) / len(ordered)).max()
    assert distance < 1.63 / np.sqrt(len(ordered))


def test_counts_of_a_poisson_process_vary_as_much_as_their_mean() -> None:
    found = arrived("--seconds", "400", rate=50, seed=2)
    counts = np.histogram(found, bins=400, range=(0, 400))[0]
    assert counts.mean() == pytest.approx(50, rel=0.03)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.2)


@each_of("burstiness", [0.25, 1.0, 4.0])
def test_the_burstiness_of_gamma_is_its_squared_variation(burstiness: float) -> None:
    found = intervals("gamma", burstiness)
    assert found.mean() == pytest.approx(0.2, rel=0.04)
    assert found.var() / found.mean() ** 2 == pytest.approx(burstiness, rel=0.08)


@each_of("process", ["constant", "poisson", "gamma"])
def test_a_seed_gives_the_same_times_again(process: str) -> None:
    first, again, other = (
        list(itertools.islice(unit_arrivals(process, 2.0, random.Random(seed)), 20)) for seed in (3, 3, 4)
    )
    assert first == again
    assert process == "constant" or first != other


def test_a_rising_rate_sends_the_area_below_its_line() -> None:
    """100 in the first 20 s, then 10 a second."""
    found = np.array(arrived("--arrivals", "constant", "--seconds", "30", "--ramp", "20", rate=10))
    assert len(found) == 200
    assert (found < 20).sum() == 100
    assert (found < 10).sum() == 25, "half of the time, a quarter of the requests"
    assert np.diff(found[found > 20]) == pytest.approx(0.1)


@each_of(("rate", "ramp"), [(8, 5), (3, 0), (0.5, 60)])
def test_the_time_of_an_expected_count_turns_the_integral_round(rate: float, ramp: float) -> None:
    for expected in (0.0, 1.0, 7.5, 30.0):
        at = time_of(expected, rate, ramp)
        rising = min(at, ramp)
        area = (rate * rising**2 / (2 * ramp) if ramp else 0.0) + max(0.0, at - ramp) * rate
        assert area == pytest.approx(expected)


def test_a_process_ends_by_count_or_by_time() -> None:
    constant = ("--arrivals", "constant", "--requests")
    assert len(arrived(*constant, "3", "--seconds", "60", rate=10)) == 3
    assert max(arrived(*constant, "1000", "--seconds", "2", rate=10)) < 2


@each_of(
    ("text", "expected"),
    [
        ("0.5\n1.5\n1\n", [Arrival(0.0), Arrival(0.5), Arrival(1.0)]),
        ("at,input_length,output_length\n3,10,20\n4,,\n", [Arrival(0.0, 10, 20), Arrival(1.0)]),
        ("2,10,20\n1e1,30,40\n", [Arrival(0.0, 10, 20), Arrival(8.0, 30, 40)]),
        (
            '{"timestamp": 2000, "input_length": 7, "output_length": 9, "hash_ids": [1]}\n\n{"timestamp": 2500}\n',
            [Arrival(0.0, 7, 9), Arrival(0.5)],
        ),
        ('{"at": 1}\n{"at": 3}\n', [Arrival(0.0), Arrival(2.0)]),
    ],
)
def test_traces_are_read(text: str, expected: list[Arrival], tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    assert read_trace(path) == expected
    assert [line.at for line in read_trace(path, speed=2.0)] == [line.at / 2 for line in expected]


@each_of(
    ("text", "said"),
    [
        ("", "no request"),
        ("word\n", "no request"),
        ('{"when": 1}\n', "request 1"),
        ("{bad\n", "request 1"),
        ("1\nx\n", "request 2"),
    ],
)
def test_a_trace_that_cannot_be_read_is_told_by_its_file(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        read_trace(path)


def test_a_trace_is_cut_by_count_and_by_time() -> None:
    came = [Arrival(float(at)) for at in range(10)]
    assert begun(read_options(["--requests", "3"]), came) == came[:3]
    assert begun(read_options(["--seconds", "4.5"]), came) == came[:5]
