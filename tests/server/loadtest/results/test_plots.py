"""Plots: well-formed, with all of their points inside, and nothing in them that could be taken for markup."""

import re
from xml.etree import ElementTree

import pytest

from server.loadtest.results.plots import (
    HEIGHT,
    MAX_POINTS,
    WIDTH,
    axis_of,
    number,
    plot,
    stacked_bars,
    thinned,
)
from tests.server.tables import each_of


@each_of("values", [[0.0, 1.0], [3.7], [0.0], [], [1e-9, 2e-9], [5.0, 1e7], [100.0, 101.0]])
def test_an_axis_holds_its_values_between_round_ends(values: list[float]) -> None:
    axis = axis_of(values)
    assert all(axis.marks[0] <= value <= axis.marks[-1] and 0 <= axis.share(value) <= 1 for value in values)
    assert 2 <= len(axis.marks) <= 9 and list(axis.marks) == sorted(axis.marks)


def test_marks_are_short() -> None:
    assert [number(value) for value in (0.0, 0.25, 250.0, 12_500.0, 2.5e6)] == ["0", "0.25", "250", "12.5k", "2.5M"]


@each_of("style", ["line", "dots", "steps"])
def test_points_lie_inside_and_the_text_is_well_formed(style: str) -> None:
    points = [(float(x), float(x * x)) for x in range(-3, 40)]
    text = plot({"a <b>": points, "none": []}, "x & y", "y", style=style)
    ElementTree.fromstring(f"<p>{text}</p>")
    assert "a <b>" not in text
    numbers = [float(value) for value in re.findall(r'c[xy]="([-0-9.]+)"', text)]
    assert all(0 <= value <= max(WIDTH, HEIGHT) for value in numbers)


def test_nothing_to_show_is_said() -> None:
    assert "nothing to show" in plot({"a": []}, "x", "y") and "nothing to show" in stacked_bars({}, [], "x")


def test_bars_are_as_long_as_their_parts() -> None:
    text = stacked_bars({"image": [30.0, 10.0], "text": [20.0, 0.0]}, ["prefill", "decode"], "ms")
    ElementTree.fromstring(f"<p>{text}</p>")
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', text)]
    assert widths[0] / widths[1] == pytest.approx(3, rel=0.01) and widths[0] / widths[2] == pytest.approx(1.5, rel=0.01)


def test_many_points_are_thinned_and_peaks_are_kept() -> None:
    points = [(float(x), 1.0) for x in range(100_000)]
    points[54_321], points[54_399] = (54_321.0, 9.0), (54_399.0, -9.0)
    kept = thinned(points)
    assert len(kept) <= MAX_POINTS and set(points[54_321:54_400:78]) <= set(kept) and list(kept) == sorted(kept)
