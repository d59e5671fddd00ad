"""Arrival processes by their statistics with fixed seeds, a rising rate by its integral, traces by their lines."""

import itertools
import random
from pathlib import Path

import numpy as np
import pytest

from server.loadtest.traffic.arrivals import (
    Rise,
    TraceError,
    TraceLine,
    arrivals,
    read_trace,
    unit_arrivals,
    until,
)

N = 20_000


def intervals(process: str, burstiness: float = 1.0, rate: float = 5.0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rise = Rise(start=rate, end=rate)
    return np.diff(arrivals(process, rise, random.Random(1), burstiness=burstiness, count=N, seconds=None))


def test_constant_is_constant() -> None:
    found = arrivals("constant", Rise(start=4, end=4), random.Random(0), count=5, seconds=None)
    assert found == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_poisson_has_exponential_intervals() -> None:
    found = intervals("poisson")
    assert found.mean() == pytest.approx(0.2, rel=0.02)
    assert found.std() / found.mean() == pytest.approx(1.0, rel=0.03)
    # Kolmogorov and Smirnov's distance to the exponential distribution, 1 % level: 1.63 / sqrt(n).
    ordered = np.sort(found)
    distance = np.abs(1 - np.exp(-5 * ordered) - (np.arange(len(ordered)) + 0.5) / len(ordered)).max()
    assert distance < 1.63 / np.sqrt(len(ordered))


def test_counts_of_a_poisson_process_vary_as_much_as_their_mean() -> None:
    found = arrivals("poisson", Rise(start=50, end=50), random.Random(2), count=None, seconds=400)
    counts = np.histogram(found, bins=400, range=(0, 400))[0]
    assert counts.mean() == pytest.approx(50, rel=0.03)
    assert counts.var() / counts.mean() == pytest.approx(1, abs=0.2)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_the_burstiness_of_gamma_is_its_squared_variation(burstiness: float) -> None:
    found = intervals("gamma", burstiness)
    assert found.mean() == pytest.approx(0.2, rel=0.04)
    assert found.var() / found.mean() ** 2 == pytest.approx(burstiness, rel=0.08)


@pytest.mark.parametrize("process", ["constant", "poisson", "gamma"])
def test_a_seed_gives_the_same_times_again(process: str) -> None:
    first, again, other = (
        list(itertools.islice(unit_arrivals(process, 2.0, random.Random(seed)), 20)) for seed in (3, 3, 4)
    )
    assert first == again
    assert process == "constant" or first != other


def test_a_rising_rate_sends_the_area_below_its_line() -> None:
    rise = Rise(start=0, end=10, seconds=20)  # 100 in the first 20 s, then 10 a second
    found = np.array(arrivals("constant", rise, random.Random(0), count=None, seconds=30))
    assert len(found) == 200
    assert (found < 20).sum() == 100
    assert (found < 10).sum() == 25, "half of the time, a quarter of the requests"
    assert np.diff(found[found > 20]) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "rise", [Rise(start=2, end=8, seconds=5), Rise(start=8, end=2, seconds=5), Rise(start=3, end=3, seconds=5)]
)
def test_the_time_of_an_expected_count_turns_the_integral_round(rise: Rise) -> None:
    for expected in (0.0, 1.0, 7.5, 30.0):
        at = rise.time_of(expected)
        inside = min(at, rise.seconds)
        slope = (rise.end - rise.start) / rise.seconds
        area = rise.start * inside + slope * inside**2 / 2 + max(0.0, at - rise.seconds) * rise.end
        assert area == pytest.approx(expected)


def test_a_process_ends_by_count_or_by_time() -> None:
    rise = Rise(start=10, end=10)
    assert len(arrivals("constant", rise, random.Random(0), count=3, seconds=60)) == 3
    assert max(arrivals("constant", rise, random.Random(0), count=1000, seconds=2)) < 2
    with pytest.raises(ValueError, match="infinitely"):
        arrivals("constant", rise, random.Random(0), count=None, seconds=None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.5\n1.5\n1\n", [TraceLine(0.0), TraceLine(0.5), TraceLine(1.0)]),
        ("at,input_length,output_length\n3,10,20\n4,,\n", [TraceLine(0.0, 10, 20), TraceLine(1.0)]),
        ("2,10,20\n1e1,30,40\n", [TraceLine(0.0, 10, 20), TraceLine(8.0, 30, 40)]),
        (
            '{"timestamp": 2000, "input_length": 7, "output_length": 9, "hash_ids": [1]}\n\n{"timestamp": 2500}\n',
            [TraceLine(0.0, 7, 9), TraceLine(0.5)],
        ),
        ('{"at": 1}\n{"at": 3}\n', [TraceLine(0.0), TraceLine(2.0)]),
    ],
)
def test_traces_are_read(text: str, expected: list[TraceLine], tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    assert read_trace(path) == expected
    assert [line.at for line in read_trace(path, speed=2.0)] == [line.at / 2 for line in expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no request"),
        ("word\n", "no request"),
        ('{"when": 1}\n', "request 1"),
        ("{bad\n", "trace: "),
        ("1\nx\n", "request 2"),
    ],
)
def test_a_trace_that_cannot_be_read_is_told_by_its_file(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(TraceError, match=said):
        read_trace(path)


def test_a_trace_is_cut_by_count_and_by_time() -> None:
    lines = [TraceLine(float(at)) for at in range(10)]
    assert until(lines, count=3, seconds=None) == lines[:3]
    assert until(lines, count=None, seconds=4.5) == lines[:5]
