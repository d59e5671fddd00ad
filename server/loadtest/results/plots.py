"""Plots as SVG text: points, lines and stacked bars with axes, for a page that loads nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 640, 260
LEFT, RIGHT, TOP, BOTTOM = 58, 12, 10, 38
MAX_POINTS = 1500  # of a series; more say nothing more
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
        return '<p class="none">nothing to show</p>'
    x = axis_of([point[0] for one in shown for point in one.points], from_zero=x_from_zero)
    y = axis_of([point[1] for one in shown for point in one.points])
    parts = [_frame(x, y, x_title, y_title)]
    parts += [_series(one, place % 6, x, y) for place, one in enumerate(shown)]
    return legend([one.name for one in shown]) + _svg("".join(parts), f"{y_title} over {x_title}")


def stacked_bars(bars: Sequence[tuple[str, Sequence[float]]], names: Sequence[str], x_title: str) -> str:
    """Lying bars, each a label and one length for each name."""
    if not bars:
        return '<p class="none">nothing to show</p>'
    high = max(sum(lengths) for _, lengths in bars)
    x = axis_of([high])
    row = 26
    height = TOP + row * len(bars) + BOTTOM
    left = 130
    scale = (WIDTH - left - RIGHT) / x.high
    parts = []
    for mark in x.marks:
        at = left + mark * scale
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - BOTTOM + 14}" text-anchor="middle">{number(mark)}</text>')
    for place, (label, lengths) in enumerate(bars):
        top, start = TOP + place * row + 4, 0.0
        parts.append(f'<text x="{left - 8}" y="{top + 13}" text-anchor="end">{escape(label)}</text>')
        for index, length in enumerate(lengths):
            title = f"<title>{escape(names[index])}: {length:.2f}</title>"
            parts.append(
                f'<rect class="f{index % 6}" x="{left + start * scale:.1f}" y="{top}" '
                f'width="{max(0.0, length * scale):.1f}" height="18">{title}</rect>'
            )
            start += length
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{height - 6}" text-anchor="end">{escape(x_title)}</text>')
    return legend(names) + _svg("".join(parts), x_title, height)


def cumulative(values: Sequence[float]) -> list[Point]:
    """Points of the share of values that are at most x, in percent."""
    ordered = sorted(values)
    n = len(ordered)
    places = range(n) if n <= 400 else sorted({round(step * (n - 1) / 400) for step in range(401)})
    return [(ordered[place], 100 * (place + 1) / n) for place in places]


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most MAX_POINTS of them: the highest and the lowest of each neighbourhood, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(2 * len(points) / MAX_POINTS)
    kept: list[Point] = []
    for start in range(0, len(points), size):
        some = points[start : start + size]
        places = {min(range(len(some)), key=lambda n: some[n][1]), max(range(len(some)), key=lambda n: some[n][1])}
        kept += [some[place] for place in sorted(places)]
    return kept


def legend(names: Sequence[str]) -> str:
    """A coloured square and a name for each series; nothing for a single one."""
    if len(names) < 2:
        return ""
    items = "".join(f'<span><i class="b{place % 6}"></i>{escape(name)}</span>' for place, name in enumerate(names))
    return f'<div class="legend">{items}</div>'


def _svg(content: str, label: str, height: int = HEIGHT) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(label)}">{content}</svg>'


def _frame(x: Axis, y: Axis, x_title: str, y_title: str) -> str:
    parts = []
    for mark in y.marks:
        at = TOP + PLOT_HEIGHT * (1 - y.share(mark))
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{number(mark)}</text>')
    for mark in x.marks:
        at = LEFT + PLOT_WIDTH * x.share(mark)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 14}" text-anchor="middle">{number(mark)}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{escape(x_title)}</text>')
    middle = TOP + PLOT_HEIGHT / 2
    parts.append(
        f'<text transform="translate(12 {middle:.0f}) rotate(-90)" text-anchor="middle">{escape(y_title)}</text>'
    )
    return "".join(parts)


def _series(series: Series, colour: int, x: Axis, y: Axis) -> str:
    places = [(LEFT + PLOT_WIDTH * x.share(a), TOP + PLOT_HEIGHT * (1 - y.share(b))) for a, b in thinned(series.points)]
    if series.style == "dots":
        dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.2"/>' for a, b in places)
        return f'<g class="f{colour} dots">{dots}</g>'
    if series.style == "steps":
        path = f"M{places[0][0]:.1f} {places[0][1]:.1f}" + "".join(f"H{a:.1f}V{b:.1f}" for a, b in places[1:])
    else:
        path = "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in places)
    marks = "".join(
        f'<circle class="f{colour}" cx="{a:.1f}" cy="{b:.1f}" r="3"/>'
        for a, b in places[: 20 if len(places) <= 20 else 0]
    )
    return f'<path class="s{colour}" d="{path}"/>{marks}'
