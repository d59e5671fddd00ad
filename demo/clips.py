"""Clips of one thing that moves left, right, up or down over a still ground.

A clip is not a pile of frames but a function that draws the one at a time, because a server looks at few of them.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from demo.answers import COLOURS, SHAPES, Direction
from demo.colours import Rgb, draw_colour, vary
from demo.grounds import choose_ground, paint_ground
from demo.shapes import Paint, draw_form, paint_form

SIZES = ((160, 120), (320, 240), (240, 240), (128, 128), (224, 224), (256, 144), (320, 180), (144, 256), (180, 320))
ROUND_SECONDS = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0)
LEAST_TRAVEL = 0.3  # of the side along which it moves
DRIFT = 0.12  # of the other side and of the way, at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """A clip and what is true of it. `size` is (width, height) in pixels, both even; `frame` draws the RGB picture at a
    time in seconds, 0 to `seconds`, and may be called in any order."""

    seconds: float
    size: tuple[int, int]
    direction: Direction
    shape: str
    colour: str
    frame: Callable[[float], Image.Image]


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """Where a thing's middle is, as time goes from 0 to 1: along a line, after a wait and before another."""

    start: tuple[float, float]
    stop: tuple[float, float]
    wait: float
    rest: float
    eased: bool
    wobble: tuple[float, float]  # pixels, x and y
    turns: float

    def at(self, time: float) -> tuple[float, float]:
        """x and y in pixels."""
        share = min(max((time - self.wait) / (1 - self.wait - self.rest), 0.0), 1.0)
        sway = float(np.sin(2 * np.pi * self.turns * share))
        if self.eased:
            share = share * share * (3 - 2 * share)
        x, y = (a + (b - a) * share for a, b in zip(self.start, self.stop, strict=True))
        return x + self.wobble[0] * sway, y + self.wobble[1] * sway


def pick_size(rng: np.random.Generator) -> tuple[int, int]:
    """Width and height of a clip, both even, 120 to 320."""
    if rng.random() < 0.5:
        width, height = SIZES[int(rng.integers(len(SIZES)))]
        return width, height
    return 2 * int(rng.integers(60, 161)), 2 * int(rng.integers(60, 161))


def ends(rng: np.random.Generator, side: float, half: float) -> tuple[float, float]:
    """Where along a side a thing's middle starts and stops, the second the greater; in one of ten out of sight."""
    most = side - 2 * half
    travel = rng.uniform(LEAST_TRAVEL * side, most) if rng.random() < 0.8 else most
    start = half + rng.uniform(0, most - travel)
    stop = start + travel
    if rng.random() < 0.1:
        which = int(rng.integers(3))
        if which != 1:
            start = -half * rng.uniform(0.3, 1.1)
        if which != 0:
            stop = side + half * rng.uniform(0.3, 1.1)
    return start, stop


def pick_path(rng: np.random.Generator, direction: Direction, size: tuple[int, int], half: float) -> Path:
    """A way in the direction for a thing that reaches `half` pixels from its middle."""
    along = 0 if direction in ("left", "right") else 1
    start, stop = ends(rng, size[along], half)
    if direction in ("left", "up"):
        start, stop = stop, start
    low, high = half, size[1 - along] - half
    across = rng.uniform(low, high) if rng.random() < 0.7 else size[1 - along] / 2
    drift = wobble = 0.0
    most = DRIFT * min(size[1 - along], abs(stop - start))
    manner = rng.random()
    if manner < 0.18:
        drift = rng.uniform(-most, most)
    elif manner < 0.28:
        wobble = rng.uniform(0.1, 0.5) * most
    points = ((start, across), (stop, min(max(across + drift, low), high)))
    wobbles = (0.0, wobble)
    if along:
        points, wobbles = (points[0][::-1], points[1][::-1]), wobbles[::-1]
    return Path(
        start=points[0],
        stop=points[1],
        wait=rng.uniform(0.02, 0.2) if rng.random() < 0.15 else 0.0,
        rest=rng.uniform(0.02, 0.2) if rng.random() < 0.15 else 0.0,
        eased=rng.random() < 0.25,
        wobble=wobbles,
        turns=rng.uniform(0.5, 3),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sprite:
    """A thing cut out: its RGB colours, and how much of each pixel it covers (mode L)."""

    colours: Image.Image
    cover: Image.Image

    def put(self, picture: Image.Image, middle: tuple[float, float]) -> None:
        """Draw it with its middle there, cut off where it reaches out of the picture."""
        width, height = self.cover.size
        picture.paste(self.colours, (round(middle[0] - width / 2), round(middle[1] - height / 2)), self.cover)


def draw_sprite(rng: np.random.Generator, shape: str, colour: str, shade: Rgb, across: float) -> Sprite:
    """A thing `across` pixels on its longer side, as in still pictures: edge soft or hard, graded or lined at times."""
    form = draw_form(rng, shape)
    second, pattern = shade, "plain"
    if rng.random() < 0.1:
        second, pattern = vary(rng, shade, colour, by=0.14), str(rng.choice(["linear", "radial", "speckle", "paper"]))
    line = (0, 0, 0) if rng.random() < 0.1 and colour != "black" and across > 24 else None
    smooth = rng.random() < 0.85
    paint = Paint(first=shade, second=second, pattern=pattern, line=line, line_width=0.03, smooth=smooth)
    white = (255, 255, 255)
    whole = Paint(first=white, second=white, pattern="plain", line=None, line_width=0, smooth=smooth)
    size = (int(form.extent[0] * across) + 2, int(form.extent[1] * across) + 2)
    colours, cover = Image.new("RGB", size, shade), Image.new("RGB", size)
    paint_form(rng, colours, form, paint, (0.5, 0.5), across)
    paint_form(rng, cover, form, whole, (0.5, 0.5), across)
    return Sprite(colours=colours, cover=cover.getchannel(0))


def beside(
    rng: np.random.Generator, size: tuple[int, int], path: Path, half: float, across: float
) -> tuple[float, float] | None:
    """A place for a still thing `across` pixels wide where the moving one never is; None if there seems to be none."""
    reach = across / 2 + half
    low = np.minimum(path.start, path.stop) - reach - np.abs(path.wobble)
    high = np.maximum(path.start, path.stop) + reach + np.abs(path.wobble)
    for _ in range(12):
        x, y = (float(rng.uniform(across / 2 + 1, side - across / 2 - 1)) for side in size)
        if not (low[0] < x < high[0] and low[1] < y < high[1]):
            return x, y
    return None


def moving(
    rng: np.random.Generator,
    direction: Direction,
    size: tuple[int, int] | None = None,
    seconds: float | None = None,
) -> Clip:
    """A clip of 0.8 to 5 s in which one thing moves in the direction by at least 30 % of the side.

    Nothing else moves; a second thing may lie beside its way, and a tenth of the things come from or go out of sight.
    `size`: (width, height); odd sides lose a pixel.
    """
    width, height = size or pick_size(rng)
    width, height = width - width % 2, height - height % 2
    if seconds is None:
        seconds = float(rng.choice(ROUND_SECONDS)) if rng.random() < 0.4 else rng.uniform(0.8, 5.0)
    kinds = [(SHAPES[int(rng.integers(len(SHAPES)))], COLOURS[int(rng.integers(len(COLOURS)))]) for _ in range(2)]
    across = rng.uniform(0.12, 0.42) * min(width, height)
    path = pick_path(rng, direction, (width, height), across / 2 + 1)
    still, spot = rng.uniform(0.12, 0.3) * min(width, height), None
    if rng.random() < 0.18 and kinds[0] != kinds[1]:
        spot = beside(rng, (width, height), path, across / 2 + 1, still)
    shades = [draw_colour(rng, colour) for _, colour in kinds[: 1 if spot is None else 2]]
    ground = paint_ground(rng, (width, height), choose_ground(rng, shades))
    if spot is not None:
        draw_sprite(rng, *kinds[1], shades[1], still).put(ground, spot)
    thing = draw_sprite(rng, *kinds[0], shades[0], across)
    length = seconds

    def frame(time: float) -> Image.Image:
        picture = ground.copy()
        thing.put(picture, path.at(time / length))
        return picture

    return Clip(
        seconds=seconds,
        size=(width, height),
        direction=direction,
        shape=kinds[0][0],
        colour=kinds[0][1],
        frame=frame,
    )
