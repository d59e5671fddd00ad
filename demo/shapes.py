"""The six shapes as polygons, in the many ways in which people draw them, and how one is painted on a picture."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageChops, ImageDraw

from demo.colours import Rgb
from demo.grounds import blend

Points = npt.NDArray[np.float64]  # [points, 2], x right and y down


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One drawing of a shape: its edge, and the edge of its hole; scaled so that the longer side of its box is 1.

    `outer` starts at (0, 0) in both axes; `extent` is the (width, height) of its box.
    """

    outer: Points
    hole: Points | None
    extent: tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Paint:
    """How a form is filled: from `first` to `second` by a pattern of grounds.blend, with a line at its edge or none."""

    first: Rgb
    second: Rgb
    pattern: str
    line: Rgb | None
    line_width: float  # share of the form's longer side
    smooth: bool  # antialiased


def draw_form(rng: np.random.Generator, shape: str, *, bold: bool = False) -> Form:
    """A random form of one of SHAPES; `bold` for small pictures, where thin rings and crosses would fade."""
    hole = None
    if shape in ("circle", "ring"):
        outer = _circle()
        if shape == "ring":
            hole = outer * (1 - rng.uniform(0.24 if bold else 0.12, 0.45))
        if rng.random() < 0.3:
            stretch = np.array([1.0, rng.uniform(0.85, 1.15)])
            outer, hole = outer * stretch, None if hole is None else hole * stretch
    else:
        makers = {"square": _square, "triangle": _triangle, "star": _star}
        outer = _cross(rng, 0.26 if bold else 0.17) if shape == "cross" else makers[shape](rng)
        if rng.random() < 0.06:
            outer = _round_corners(outer, rng.uniform(0.08, 0.22))
        elif rng.random() < 0.06:  # an unsteady hand
            outer = outer + rng.normal(0, 0.02, outer.shape)
    low, high = outer.min(0), outer.max(0)
    scale = float((high - low).max())
    width, height = ((high - low) / scale).tolist()
    inner = None if hole is None else (hole - low) / scale
    return Form(outer=(outer - low) / scale, hole=inner, extent=(width, height))


def _circle() -> Points:
    turn = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    return np.stack([np.cos(turn), np.sin(turn)], axis=-1)


def _turned(points: Points, degrees: float) -> Points:
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    turned: Points = points @ np.array([[cosine, sine], [-sine, cosine]])
    return turned


def _tilt(rng: np.random.Generator, *, free: float) -> float:
    """A rotation in degrees: mostly none, else up to 15; any at all with probability `free`."""
    if rng.random() < free:
        return float(rng.uniform(0, 360))
    return 0.0 if rng.random() < 0.55 else float(rng.uniform(-15, 15))


def _square(rng: np.random.Generator) -> Points:
    points = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], dtype=np.float64)
    if rng.random() < 0.3:
        points[:, int(rng.integers(2))] *= rng.uniform(1, 1.12)
    return _turned(points, _tilt(rng, free=0))


def _triangle(rng: np.random.Generator) -> Points:
    roll = rng.random()
    if roll < 0.4:
        points = np.array([[0, -np.sqrt(3)], [1, 0], [-1, 0]])
    elif roll < 0.75:
        points = np.array([[0, -2 * rng.uniform(0.6, 1.35)], [1, 0], [-1, 0]])
    else:
        points = np.array([[0, -rng.uniform(0.6, 1.6)], [1, 0], [0, 0]])
        if rng.random() < 0.5:
            points = points * np.array([-1, 1])
    if rng.random() < 0.1:
        points = points * np.array([1, -1])  # on its tip
    return _turned(points, _tilt(rng, free=0.25))


def _star(rng: np.random.Generator) -> Points:
    tips = int(rng.choice([5, 4, 6, 8], p=[0.76, 0.07, 0.1, 0.07]))
    inner = rng.uniform(0.35, 0.42 if tips == 4 else 0.55)
    if tips == 5 and rng.random() < 0.4:
        inner = 0.382  # the pentagram, which most programs offer
    turn = np.arange(2 * tips) * np.pi / tips - np.pi / 2
    radius = np.where(np.arange(2 * tips) % 2 == 0, 1.0, inner)
    points = np.stack([np.cos(turn) * radius, np.sin(turn) * radius], axis=-1)
    return _turned(points, _tilt(rng, free=0.25))


def _cross(rng: np.random.Generator, least: float) -> Points:
    half = rng.uniform(least, 0.42)
    corner = [(-half, -1), (half, -1), (half, -half), (1, -half), (1, half), (half, half)]
    corner += [(half, 1), (-half, 1), (-half, half), (-1, half), (-1, -half), (-half, -half)]
    points = np.array(corner, dtype=np.float64)
    if rng.random() < 0.2:
        points = points * np.array([1.0, rng.uniform(0.88, 1.14)])
    if rng.random() < 0.25:
        return _turned(points, 45)
    return points if rng.random() < 0.8 else _turned(points, float(rng.uniform(-8, 8)))


def _round_corners(points: Points, share: float) -> Points:
    """Every corner replaced by a parabola that begins `share` of each side away from it."""
    before, after = np.roll(points, 1, axis=0), np.roll(points, -1, axis=0)
    enter, leave = points + (before - points) * share, points + (after - points) * share
    steps = np.linspace(0, 1, 6)[None, :, None]  # [1, steps, 1]
    curve = (1 - steps) ** 2 * enter[:, None] + 2 * steps * (1 - steps) * points[:, None] + steps**2 * leave[:, None]
    return np.asarray(curve.reshape(-1, 2))


def _fine(size: float, smooth: bool) -> int:
    """How many times finer than the picture a form of so many pixels is drawn before it is averaged."""
    if not smooth:
        return 1
    return 4 if size < 110 else 3 if size < 220 else 2


def paint_form(
    rng: np.random.Generator, image: Image.Image, form: Form, paint: Paint, at: tuple[float, float], size: float
) -> tuple[float, float, float, float]:
    """Paints a form on `image`, `size` pixels on its longer side, the corner of its box at `at` (x, y).

    Returns the box of what was drawn (x1, y1, x2, y2), in pixels, tight to a pixel.
    """
    fine = _fine(size, paint.smooth)
    left, top = int(at[0]), int(at[1])
    near = (at[0] - left, at[1] - top)
    tile = (int(form.extent[0] * size + near[0]) + 2, int(form.extent[1] * size + near[1]) + 2)
    full = (tile[0] * fine, tile[1] * fine)
    edges = [edge for edge in (form.outer, form.hole) if edge is not None]
    paths = [((edge * size + near) * fine - 0.5).ravel().tolist() for edge in edges]
    mask = Image.new("L", full)
    draw = ImageDraw.Draw(mask)
    draw.polygon(paths[0], fill=255)
    for path in paths[1:]:
        draw.polygon(path, fill=0)
    box = mask.getbbox() or (0, 0, fine, fine)
    small = mask.reduce(fine) if fine > 1 else mask
    image.paste(blend(rng, tile, paint.first, paint.second, paint.pattern), (left, top), small)
    if paint.line is not None:
        # Twice the width, of which the half outside the form is cut off again: so the box stays what it was.
        thick = max(1, round(paint.line_width * size)) * fine * 2
        line = Image.new("L", full)
        pen = ImageDraw.Draw(line)
        for path in paths:
            pen.line(path + path[:4], fill=255, width=thick, joint="curve")
        line = ImageChops.darker(line, mask)
        image.paste(paint.line, (left, top), line.reduce(fine) if fine > 1 else line)
    return left + box[0] / fine, top + box[1] / fine, left + box[2] / fine, top + box[3] / fine
