"""Pictures for a small vision-language model to learn from: coloured shapes on many grounds, and printed numbers.

Everything is drawn from a seeded numpy generator: the same state gives the same picture. What is asked about a
picture, and in which words, is not known here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from PIL import Image

from demo.answers import COLOURS, SHAPES
from demo.colours import Rgb, draw_colour, lab, tells_apart, vary
from demo.grounds import Ground, choose_ground, paint_ground, shift
from demo.lettering import paint_number
from demo.placing import place
from demo.shapes import Form, Paint, draw_form, paint_form

COMMON_SIZES = ((224, 224), (256, 256), (300, 300), (320, 240), (400, 300), (400, 400), (500, 500), (512, 512))


@dataclass(frozen=True, slots=True, kw_only=True)
class Thing:
    """One thing in a picture. `box` is x1, y1, x2, y2 in pixels, tight round what is drawn."""

    shape: str
    colour: str
    box: tuple[float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """An RGB picture and what is in it: things in the order in which they were asked for, or a printed number."""

    image: Image.Image
    things: tuple[Thing, ...]
    number: str | None
    number_box: tuple[int, int, int, int] | None = None  # of its ink


def random_size(rng: np.random.Generator) -> tuple[int, int]:
    """(width, height) in pixels: 64..900 a side, mostly 120..500, from 1:2 to 2:1."""
    roll = rng.random()
    if roll < 0.12:
        return COMMON_SIZES[int(rng.integers(len(COMMON_SIZES)))]
    low, high = (120, 460) if roll < 0.82 else (64, 160) if roll < 0.92 else (400, 900)
    side = low * (high / low) ** rng.random()
    aspect = 1.0 if rng.random() < 0.35 else 2.0 ** rng.uniform(-1, 1)
    width, height = side * aspect**0.5, side * aspect**-0.5
    return max(64, min(900, round(width))), max(64, min(900, round(height)))


def random_kinds(rng: np.random.Generator, count: int) -> tuple[tuple[str, str], ...]:
    """(shape, colour) of `count` things, with coincidences worth asking about: all alike, one shape, one colour ..."""
    shapes = [SHAPES[index] for index in rng.integers(len(SHAPES), size=count)]
    colours = [COLOURS[index] for index in rng.integers(len(COLOURS), size=count)]
    roll = rng.random()
    if roll < 0.3:
        shapes = shapes[:1] * count
    if roll < 0.14 or 0.3 <= roll < 0.42:
        colours = colours[:1] * count
    if 0.42 <= roll < 0.65:  # two kinds, several of each
        picks = rng.integers(2, size=count).tolist()
        shapes, colours = [shapes[pick % count] for pick in picks], [colours[pick % count] for pick in picks]
    return tuple(zip(shapes, colours, strict=True))


def crowd_kinds(rng: np.random.Generator, count: int) -> tuple[tuple[str, str], ...]:
    """(shape, colour) of `count` things: some share one of the two, however many, and all else is as it comes.

    Who counts one kind then finds neither help nor harm in what else is alike.
    """
    shapes = rng.integers(len(SHAPES), size=count)
    colours = rng.integers(len(COLOURS), size=count)
    shared = shapes if rng.random() < 0.7 else colours
    shared[: rng.integers(1, count + 1)] = shared[0]
    order = rng.permutation(count)
    return tuple((SHAPES[shape], COLOURS[colour]) for shape, colour in zip(shapes[order], colours[order], strict=True))


def draw_scene(
    rng: np.random.Generator, size: tuple[int, int], count: int, *, kinds: Sequence[tuple[str, str]] | None = None,
    varied: bool = False,
) -> Picture:  # fmt: skip
    """A picture of `size` (width, height) with `count` things that lie apart from one another.

    `kinds` gives the (shape, colour) of each; without it they are random. `varied`: more of them have lines at their
    edges, strong gradients or nothing but an outline; the examination is drawn without. Raises ValueError if `kinds` is
    of another length than `count`.
    """
    chosen = random_kinds(rng, count) if kinds is None else tuple(kinds)
    if len(chosen) != count:
        raise ValueError(f"{count} things, but kinds of {len(chosen)}")
    shades = _shades(rng, [colour for _, colour in chosen])
    ground = choose_ground(rng, shades) if shades else choose_ground(rng, [(255, 0, 0)])
    image = paint_ground(rng, size, ground)
    forms = [draw_form(rng, shape, bold=min(size) < 150) for shape, _ in chosen]
    places = place(rng, size, [form.extent for form in forms])
    smooth = rng.random() < 0.85
    lined, graded = rng.random() < 0.15, rng.random() < 0.1
    look = _look(rng) if varied else Look()
    things = []
    for (shape, colour), shade, form, (x, y, side) in zip(chosen, shades, forms, places, strict=True):
        paint = _paint(rng, colour, shade, ground, line=lined and side > 24, grade=graded, smooth=smooth)
        paint, form = look.on(shape, colour, paint, form, side)
        box = paint_form(rng, image, form, paint, (x, y), side)
        things.append(Thing(shape=shape, colour=colour, box=box))
    return Picture(image=image, things=tuple(things), number=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """How all things of a scene differ from plain ones; as it stands: not at all. Widths are of the longer side."""

    line: float = 0.0  # width of the line at the edge
    lighter: bool = False  # a white line, else a black one
    shaded: int = 0  # how many steps of 255 darker one end of a thing is, of black ones lighter
    radial: bool = False
    hollow: float = 0.0  # squares and triangles are outlines of about this width; an open circle would be a ring

    def on(self, shape: str, colour: str, paint: Paint, form: Form, side: float) -> tuple[Paint, Form]:
        """A thing of `side` pixels in this look."""
        if self.shaded:
            other = shift(paint.first, self.shaded if colour == "black" else -self.shaded)
            paint = replace(paint, second=other, pattern="radial" if self.radial else "linear")
        if self.line and side > 20 and colour not in ("black", "white"):
            paint = replace(paint, line=(255, 255, 255) if self.lighter else (0, 0, 0), line_width=self.line)
        if self.hollow * side > 2 and shape in ("square", "triangle"):
            heart = form.outer.mean(0) if shape == "triangle" else np.array(form.extent) / 2
            form = replace(form, hole=heart + (form.outer - heart) * (1 - 2.6 * self.hollow))
        return paint, form


def _look(rng: np.random.Generator) -> Look:
    roll = rng.random()
    if roll < 0.45:
        return Look()
    if roll < 0.65:
        return Look(line=float(rng.uniform(0.02, 0.07)), lighter=rng.random() < 0.15)
    if roll < 0.85:
        return Look(shaded=int(rng.uniform(15, 50)), radial=rng.random() < 0.4)
    if roll < 0.93:
        return Look(line=float(rng.uniform(0.02, 0.06)), shaded=int(rng.uniform(15, 45)))
    return Look(hollow=float(rng.uniform(0.05, 0.1)))


def _shades(rng: np.random.Generator, names: Sequence[str]) -> list[Rgb]:
    """A shade for each name; in most pictures things of one colour have one shade."""
    if rng.random() < 0.7:
        palette = {name: draw_colour(rng, name) for name in dict.fromkeys(names)}
        return [palette[name] for name in names]
    return [draw_colour(rng, name) for name in names]


def _paint(
    rng: np.random.Generator, colour: str, shade: Rgb, ground: Ground, *, line: bool, grade: bool, smooth: bool
) -> Paint:
    second, pattern = shade, "plain"
    if grade:
        second = vary(rng, shade, colour, by=0.14)
        pattern = str(rng.choice(["linear", "radial", "speckle", "paper"]))
    edge: Rgb | None = None
    if line and colour != "black":
        edge = (0, 0, 0) if rng.random() < 0.5 else shift(shade, -90)
        tones = lab([ground.first, ground.second])
        # An edge that melts into the ground would make the thing look smaller than its box.
        edge = edge if tells_apart(lab([edge])[0], tones) else None
    return Paint(
        first=shade,
        second=second,
        pattern=pattern,
        line=edge,
        line_width=float(rng.uniform(0.01, 0.035)),
        smooth=smooth,
    )


def draw_number(rng: np.random.Generator, size: tuple[int, int], digits: str) -> Picture:
    """A picture of `size` (width, height) with a printed number; `things` is empty.

    Raises ValueError unless `digits` is one to four decimal digits.
    """
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 4):
        raise ValueError(f"not one to four digits: {digits!r}")
    name = "black" if rng.random() < 0.4 else COLOURS[int(rng.integers(len(COLOURS)))]
    shade = draw_colour(rng, name)
    image = paint_ground(rng, size, choose_ground(rng, [shade], strict=True))
    box = paint_number(rng, image, digits, shade)
    return Picture(image=image, things=(), number=digits, number_box=box)
