"""Plots as SVG text: points, lines and stacked bars with axes, for a page that loads nothing."""

import math
from collections.abc import Mapping, Sequence
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
class Axis:
    """The marks of one axis, evenly spaced; it begins and ends with one."""

    marks: tuple[float, ...]

    def share(self, value: float) -> float:
        return (value - self.marks[0]) / (self.marks[-1] - self.marks[0])


def axis_of(values: Sequence[float], *, from_zero: bool = True) -> Axis:
    """An axis that holds all values and ends at round numbers."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    low = min(0.0, low) if from_zero else low
    high = high if high > low else low + 1.0
    raw = (high - low) / 5
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * magnitude for factor in (1, 2, 2.5, 5, 10) if factor * magnitude >= raw * 0.999)
    first, last = math.floor(low / step), math.ceil(high / step - 1e-9)
    return Axis(tuple(place * step for place in range(first, last + 1)))


def number(value: float) -> str:
    """As short as an axis wants it."""
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    return f"{value / 1e3:g}k" if abs(value) >= 1e4 else f"{round(value, 6):g}"


def plot(
    series: Mapping[str, Sequence[Point]], x_title: str, y_title: str, *, style: str = "line", x_from_zero: bool = True
) -> str:
    """One plot of points by their names, as `line`, `dots` or `steps`; a sentence where there is nothing to show."""
    shown = {name: points for name, points in series.items() if points}
    if not shown:
        return NOTHING
    x = axis_of([a for points in shown.values() for a, _ in points], from_zero=x_from_zero)
    y = axis_of([b for points in shown.values() for _, b in points])
    parts = _x_axis(x, x_title, LEFT, HEIGHT)
    for mark in y.marks:
        at = TOP + PLOT_HEIGHT * (1 - y.share(mark))
        parts.append(f'<path class="grid" d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 6, at + 4, number(mark)))
    turned = f'transform="translate(12 {TOP + PLOT_HEIGHT / 2:.0f}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(y_title)}</text>')
    for colour, points in enumerate(shown.values()):
        places = [(LEFT + PLOT_WIDTH * x.share(a), TOP + PLOT_HEIGHT * (1 - y.share(b))) for a, b in thinned(points)]
        parts.append(_drawn(places, style, colour))
    return _figure(list(shown), parts, f"{y_title} over {x_title}", HEIGHT)


def stacked_bars(bars: Mapping[str, Sequence[float]], names: Sequence[str], x_title: str) -> str:
    """Lying bars by their labels, of one length for each name."""
    if not bars:
        return NOTHING
    left, row = 130, 26
    height = TOP + row * len(bars) + BOTTOM
    x = axis_of([sum(lengths) for lengths in bars.values()])
    scale = (WIDTH - left - RIGHT) / x.marks[-1]
    parts = _x_axis(x, x_title, left, height)
    for top, (label, lengths) in zip(range(TOP + 4, height, row), bars.items(), strict=False):
        parts.append(_text(left - 8, top + 13, label))
        starts = accumulate(lengths, initial=0.0)
        for index, (name, start, length) in enumerate(zip(names, starts, lengths, strict=False)):
            parts.append(
                f'<rect class="f{index % 6}" x="{left + start * scale:.1f}" y="{top}" width="{length * scale:.1f}" '
                f'height="18"><title>{escape(name)}: {length:.2f}</title></rect>'
            )
    return _figure(names, parts, x_title, height)


def thinned(points: Sequence[Point]) -> Sequence[Point]:
    """At most MAX_POINTS of them: the highest and the lowest of each neighbourhood, so that no peak is lost."""
    if len(points) <= MAX_POINTS:
        return points
    size = math.ceil(2 * len(points) / MAX_POINTS)
    groups = (range(start, min(start + size, len(points))) for start in range(0, len(points), size))
    ends = ({pick(group, key=lambda place: points[place][1]) for pick in (min, max)} for group in groups)
    return [points[place] for group in ends for place in sorted(group)]


def _x_axis(x: Axis, title: str, left: int, height: int) -> list[str]:
    """Its lines, numbers and title, in a figure of this height."""
    parts = [_text(WIDTH - RIGHT, height - 6, title)]
    for mark in x.marks:
        at = left + (WIDTH - left - RIGHT) * x.share(mark)
        parts.append(f'<path class="grid" d="M{at:.1f} {TOP}V{height - BOTTOM}"/>')
        parts.append(_text(at, height - BOTTOM + 14, number(mark), "middle"))
    return parts


def _text(x: float, y: float, words: str, anchor: str = "end") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


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
