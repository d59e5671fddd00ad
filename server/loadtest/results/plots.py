"""Plots as SVG text: points, lines and stacked bars with axes, for a page that loads nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 38
MAX_POINTS = 1500  # of a series; more say nothing more
NOTHING = '<p class="none">nothing to show</p>'
PLOT_WIDTH, PLOT_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong together. style: `line`, `dots` or `steps`."""

    name: str
    points: Sequence[Point]
    style: str = "line"


@dataclass(frozen=True, slots=True)
class Axis:
    """The range that one axis shows, and its marks."""

    low: float
    high: float
    marks: tuple[float, ...]

    def share(self, value: float) -> float:
        return (value - self.low) / (self.high - self.low)


def axis_of(values: Sequence[float], *, from_zero: bool = True, count: int = 5) -> Axis:
    """An axis that holds all values and ends at round numbers."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if from_zero else low
    if high <= low:
        high = low + 1.0
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, tuple(place * step for place in range(first, last + 1)))


def number(value: float) -> str:
    """As short as an axis wants it."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{round(value, 6):g}"


def plot(series: Sequence[Series], x_title: str, y_title: str, *, x_from_zero: bool = True) -> str:
    """One plot with a legend below its title; a sentence where there is nothing to show."""
    shown = [one for one in series if one.points]
    if not shown:
        return NOTHING
    x = axis_of([point[0] for one in shown for point in one.points], from_zero=x_from_zero)
    y = axis_of([point[1] for one in shown for point in one.points])
    parts = _x_axis(x, x_title, LEFT, HEIGHT)
    for mark in y.marks:
        at = TOP + PLOT_HEIGHT * (1 - y.share(mark))
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(mark)}</text>')
    turned = f'transform="translate(12 {TOP + PLOT_HEIGHT / 2:.0f}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(y_title)}</text>')
    for colour, one in enumerate(shown):
        points = thinned(one.points)
        places = [(LEFT + PLOT_WIDTH * x.share(a), TOP + PLOT_HEIGHT * (1 - y.share(b))) for a, b in points]
        parts.append(_drawn(places, one.style, colour % 6))
    return _figure([one.name for one in shown], parts, f"{y_title} over {x_title}", HEIGHT)


def stacked_bars(bars: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], x_title: str) -> str:
    """Lying bars, each a label and one length for each name."""
    if not bars:
        return NOTHING
    left, row = 130, 26
    height = TOP + row * len(bars) + BOTTOM
    x = axis_of([sum(lengths) for _, lengths in bars])
    scale = (WIDTH - left - RIGHT) / x.high
    parts = _x_axis(x, x_title, left, height)
    for top, (label, lengths) in zip(range(TOP + 4, height, row), bars, strict=False):
        parts.append(f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{escape(label)}</text>')
        starts = accumulate(lengths, initial=0.0)
        for index, (name, start, length) in enumerate(zip(names, starts, lengths, strict=False)):
            parts.append(
                f'<rect class="f{index % 6}" x="{left + start * scale:.1f}" y="{top}" width="{length * scale:.1f}" '
                f'height="18"><title>{escape(name)}: {length:.2f}</title></rect>'
            )
    return _figure(names, parts, x_title, height)


def cumulative(values: Sequence[float]) -> list[Point]:
    """Points of the share of values that are at most x, in percent."""
    ordered = sorted(values)
    n = len(ordered)
    places = sorted({round(step * (n - 1) / 400) for step in range(401)}) if n else []
    return [(ordered[place], 100 * (place + 1) / n) for place in places]


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most MAX_POINTS of them: the highest and the lowest of each neighbourhood, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(2 * len(points) / MAX_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        some = points[start : start + size]
        ends = {min(some, key=lambda point: point[1]), max(some, key=lambda point: point[1])}
        kept += [point for point in some if point in ends]
    return kept


def _x_axis(x: Axis, title: str, left: int, height: int) -> list[str]:
    """Its lines, numbers and title, in a figure of this height."""
    parts = [f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{escape(title)}</text>']
    for mark in x.marks:
        at = left + (WIDTH - left - RIGHT) * x.share(mark)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - BOTTOM + 14}" text-anchor="middle">{number(mark)}</text>')
    return parts


def _drawn(places: Sequence[Point], style: str, colour: int) -> str:
    if style == "dots":
        dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.2"/>' for a, b in places)
        return f'<g class="f{colour} dots">{dots}</g>'
    first, *others = (f"{a:.1f} {b:.1f}" for a, b in places)
    steps = "".join(f"H{a:.1f}V{b:.1f}" for a, b in places[1:])
    path = f"M{first}{steps}" if style == "steps" else "M" + "L".join([first, *others])
    marked = places if len(places) <= 20 else []
    marks = "".join(f'<circle class="f{colour}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in marked)
    return f'<path class="s{colour}" d="{path}"/>{marks}'


def _figure(names: Sequence[str], parts: Sequence[str], label: str, height: int) -> str:
    """A legend where there is more than one name, and the drawing."""
    items = "".join(f'<span><i class="b{place % 6}"></i>{escape(name)}</span>' for place, name in enumerate(names))
    legend = f'<div class="legend">{items}</div>' if len(names) > 1 else ""
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">'
    return f"{legend}{head}{''.join(parts)}</svg>"
