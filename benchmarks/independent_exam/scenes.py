"""Scenes: which things stand where in a picture, and in which of the five looks; nothing is drawn here."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.independent_exam import palettes
from benchmarks.independent_exam.outlines import Outline, Points, box_of, freehand, outline
from benchmarks.independent_exam.palettes import Rgb
from benchmarks.independent_exam.words import COLOURS, SHAPES

LOOKS = ("flat", "gradient", "outline", "paint program", "phone noise")
LEAST = 0.1  # of the picture's shorter side: the shorter side of a thing's box
_GAP = 0.03  # of the shorter side, at least between two things' circles, and to the edge
_RATIOS = ((1, 1), (4, 3), (3, 2), (16, 9), (3, 4), (2, 3))
Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One thing in pixels of its picture. stroke: the width of its outline, 0 for none; `ink` is its colour."""

    shape: str
    colour: str
    rgb: Rgb
    parts: Outline
    stroke: float = 0.0
    ink: Rgb = (0, 0, 0)

    @property
    def box(self) -> Box:
        """What it covers."""
        return box_of(self.parts, self.stroke / 2)

    @property
    def words(self) -> str:
        """Colour and shape."""
        return f"{self.colour} {self.shape}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One picture before it is drawn. detail: the seed of what the look adds (grain, light, paper, file format).

    number: digits that are printed on it, on top of things if there are any.
    """

    width: int
    height: int
    look: str
    ground: Rgb
    things: tuple[Thing, ...]
    detail: int
    number: str = ""


def scene(
    kinds: Sequence[tuple[str, str]], look: str, rng: np.random.Generator, largest: float = 0.7, shorter: int = 0
) -> Scene:
    """A scene of things with these shapes and colours, which never overlap.

    An empty colour is drawn: any that stands out. largest: of the shorter side, for one thing alone. shorter: the
    shorter side in pixels, drawn if 0. What does not fit is drawn again, and smaller.
    """
    width, height = size(rng, shorter)
    short = min(width, height)
    behind = _ground_for([colour for _, colour in kinds], look, rng)
    most = min(largest, 0.85 / np.sqrt(max(1, len(kinds))))
    for attempt in range(400):
        least = 0.165  # an outline is at most 1.3 times as long as wide, and a camera takes a little
        sizes = short * rng.uniform(least, max(least + 0.02, most * 0.995**attempt), len(kinds))
        if (centres := _places(sizes, width, height, rng)) is not None:
            break
    else:
        raise ValueError(f"{len(kinds)} things find no place in {width} x {height}")
    view = _camera(width, height, rng) if look == "phone noise" else None
    things = []
    for (shape, colour), centre, scale in zip(kinds, centres, sizes, strict=True):
        name, rgb = _colour(colour, look, behind, rng)
        things.append(_thing(shape, name, rgb, look, centre, float(scale), view, rng))
    detail = int(rng.integers(2**31))
    return Scene(width=width, height=height, look=look, ground=behind, things=tuple(things), detail=detail)


def any_shape(rng: np.random.Generator) -> str:
    """One of the shapes."""
    return SHAPES[int(rng.integers(len(SHAPES)))]


def any_colour(rng: np.random.Generator) -> str:
    """One of the colours."""
    return COLOURS[int(rng.integers(len(COLOURS)))]


def size(rng: np.random.Generator, shorter: int = 0) -> tuple[int, int]:
    """Width and height in pixels."""
    short = shorter or int(rng.integers(200, 561))
    wide, high = _RATIOS[int(rng.integers(len(_RATIOS)))]
    return round(short * wide / min(wide, high)), round(short * high / min(wide, high))


def moved(thing: Thing, by: Points) -> Thing:
    """The same thing elsewhere."""
    return replace(thing, parts=tuple(part + by for part in thing.parts))


def _ground_for(colours: Sequence[str], look: str, rng: np.random.Generator) -> Rgb:
    """One on which every named colour stands out, whichever paint it becomes."""
    for _ in range(500):
        behind = palettes.ground(look, rng)
        trial = np.random.default_rng(0)
        paints = [palettes.paint(colour, look, trial) for colour in colours if colour for _ in range(12)]
        if all(palettes.stands_out(paint, behind) for paint in paints):
            return behind
    raise ValueError(f"no ground for {', '.join(colours)}")


def _colour(wanted: str, look: str, behind: Rgb, rng: np.random.Generator) -> tuple[str, Rgb]:
    for _ in range(500):
        name = wanted or any_colour(rng)
        rgb = palettes.paint(name, look, rng)
        if palettes.stands_out(rgb, behind):
            return name, rgb
    raise ValueError(f"{wanted or 'no colour'} does not stand out from {behind}")


def _places(sizes: Points, width: int, height: int, rng: np.random.Generator) -> list[Points] | None:
    """Centres of things in circles with these diameters times the root of 2, apart from each other."""
    gap = _GAP * min(width, height)
    reach = sizes / np.sqrt(2) * 1.02
    centres: list[Points] = []
    for one in reach:
        low, high = np.array([one + gap] * 2), np.array([width, height]) - one - gap
        if one / np.sqrt(2) + gap > min(width, height) / 2:
            return None
        tight, middle = high < low, np.array([width, height]) / 2
        low, high = np.where(tight, middle, low), np.where(tight, middle, high)
        for _ in range(60):
            here = rng.uniform(low, high)
            if all(np.hypot(*(here - there)) >= one + r + gap for there, r in zip(centres, reach, strict=False)):
                centres.append(here)
                break
        else:
            return None
    return centres


def _thing(
    shape: str,
    colour: str,
    rgb: Rgb,
    look: str,
    centre: Points,
    scale: float,
    view: Points | None,
    rng: np.random.Generator,
) -> Thing:
    parts: Outline = tuple(part * scale for part in outline(shape, rng))
    stroke, ink = 0.0, (0, 0, 0)
    if look == "outline":
        stroke = max(1.5, scale * rng.uniform(0.025, 0.055))
        ink = (25, 25, 30) if rng.random() < 0.6 and colour != "black" else palettes.mixed(rgb, (0, 0, 0), 0.45)
    elif look == "paint program":
        parts = tuple(freehand(part, scale * 0.018, rng) for part in parts)
        stroke, ink = float(rng.integers(0, 4)), (0, 0, 0) if rng.random() < 0.6 else rgb
    parts = tuple(part + centre for part in parts)
    if view is not None:
        parts = tuple(_seen(part, view) for part in parts)
    return Thing(shape=shape, colour=colour, rgb=rgb, parts=parts, stroke=stroke, ink=ink)


def _camera(width: int, height: int, rng: np.random.Generator) -> Points:
    """A homography [3, 3] of a sheet that is not quite seen from above: a little turn, a little perspective."""
    turn = np.radians(rng.uniform(-3, 3))
    cos, sin = np.cos(turn) * 0.9, np.sin(turn) * 0.9
    middle = np.array([[1, 0, width / 2], [0, 1, height / 2], [0, 0, 1.0]])
    tilt = rng.uniform(-0.06, 0.06, 2) / np.array([width, height])
    around = np.array([[cos, -sin, 0], [sin, cos, 0], [tilt[0], tilt[1], 1.0]])
    return np.asarray(middle @ around @ np.linalg.inv(middle))


def _seen(points: Points, view: Points) -> Points:
    found = np.column_stack([points, np.ones(len(points))]) @ view.T
    return np.asarray(found[:, :2] / found[:, 2:])
