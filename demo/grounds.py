"""What things are drawn on: plain, graded, speckled, papery or ruled grounds in light, tinted and dark tones.

Every ground lies between two near colours, so that one check of both says whether a thing can be seen on it.
"""

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from demo.colours import Floats, Rgb, lab, parse, tells_apart

LIGHT = parse(
    "f5f5f5 eeeeee e8e8e8 dddddd d3d3d3 c8c8c8 fffff0 f5f5dc faf0e6 fff8dc fdf6e3 f0f8ff e6f2ff dbe9f4 cfe8ff "
    "e0f7fa e8f5e9 dff0d8 d5f5e3 fce4ec ffe4e1 f3e5f5 e6e6fa fff3e0 fffde7 ffe4c4 eaeaf2 add8e6 c8e6c9 b0e0e6 ffdab9"
)
MIDDLE = parse(
    "c0c0c0 a9a9a9 808080 999999 b0b0b0 8fa3ad 87a0b8 8fbc8f a3b18a 9aa886 d2b48c c4a484 bc8f8f b0a8b9 7f8fa6 "
    "6f8f8f 5f9ea0 778899 708090 a0785a 8c7b6b 66808a 88b0c0 99d9ea d8bfd8 c9b18f"
)
DARK = parse(
    "000000 0d1117 111111 1e1e1e 222222 2b2b2b 333333 404040 4d4d4d 000080 00003c 0b1d51 191970 1b2a41 14213d "
    "013220 003300 0b3d2e 2f4f4f 1a2f2f 2b1b17 3e2723 3b2f2f 2d1b3d 301934 400010 1d2b1d 263238 37474f 002b36"
)
SAFE = parse("ffffff f5f5f5 000000 222222 404040 808080 999999 b0b0b0 8fa3ad 778899 5f7f86 c4b49c 6b7d6b a08f80 7f95a8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """A ground before it is painted: its two colours, the pattern between them, and the shade of its ruling, if any."""

    first: Rgb
    second: Rgb
    pattern: str  # plain, linear, radial, speckle or paper
    ruling: Rgb | None


def shift(colour: Rgb, by: float) -> Rgb:
    """A colour lighter (by > 0) or darker by so many steps of 255 in every channel."""
    red, green, blue = (max(0, min(255, round(channel + by))) for channel in colour)
    return red, green, blue


def blend(rng: np.random.Generator, size: tuple[int, int], first: Rgb, second: Rgb, pattern: str) -> Image.Image:
    """An RGB picture of `size` (width, height) between two colours by a pattern: see Ground."""
    if pattern == "plain" or first == second:
        return Image.new("RGB", size, first)
    where = _pattern(rng, size, pattern)
    ramp = np.linspace(np.array(first), np.array(second), 256).round().astype(np.uint8)  # [256, 3]
    return Image.merge("RGB", [where.point(ramp[:, channel].tolist()) for channel in range(3)])


def _pattern(rng: np.random.Generator, size: tuple[int, int], pattern: str) -> Image.Image:
    """How far from the first colour to the second each pixel lies, 0..255, as a picture of mode L."""
    width, height = size
    if pattern == "linear":
        angle = rng.choice([0.0, 0.5 * np.pi, rng.uniform(0, 2 * np.pi)])
        across = np.linspace(-0.5, 0.5, width, dtype=np.float32) * np.cos(angle)
        down = np.linspace(-0.5, 0.5, height, dtype=np.float32) * np.sin(angle)
        reach = float(abs(np.cos(angle)) + abs(np.sin(angle)))
        slope = (down[:, None] + across[None, :]) * (255 / reach) + 127.5  # [height, width]
        return Image.fromarray(slope.astype(np.uint8))
    if pattern == "radial":
        return Image.radial_gradient("L").resize(size, Image.Resampling.BILINEAR)
    if pattern == "speckle":
        return Image.frombytes("L", size, rng.bytes(width * height))
    grain = int(rng.integers(2, 6))
    small = (max(2, width // grain), max(2, height // grain))
    return Image.frombytes("L", small, rng.bytes(small[0] * small[1])).resize(size, Image.Resampling.BILINEAR)


def _any_ground(rng: np.random.Generator) -> Ground:
    """A ground regardless of what is to lie on it."""
    roll = rng.random()
    if roll < 0.36:
        base = (255, 255, 255)
    else:
        choices = LIGHT if roll < 0.6 else MIDDLE if roll < 0.76 else DARK
        base = choices[int(rng.integers(len(choices)))]
        if rng.random() < 0.4:
            hue, saturation, value = colorsys.rgb_to_hsv(base[0] / 255, base[1] / 255, base[2] / 255)
            turned = colorsys.hsv_to_rgb(float(rng.random()), saturation, value)
            base = (round(turned[0] * 255), round(turned[1] * 255), round(turned[2] * 255))
        base = shift(base, rng.uniform(-8, 8))
    pattern = str(rng.choice(["plain", "linear", "radial", "speckle", "paper"], p=[0.66, 0.12, 0.04, 0.08, 0.1]))
    second = base
    if pattern in ("linear", "radial"):
        second = shift(base, rng.uniform(18, 60) * (-1 if sum(base) > 380 else 1))
    elif pattern != "plain":
        second = shift(base, rng.uniform(5, 22) * (-1 if sum(base) > 380 else 1))
    ruling = shift(base, rng.uniform(10, 26) * (-1 if sum(base) > 300 else 1)) if rng.random() < 0.07 else None
    return Ground(first=base, second=second, pattern=pattern, ruling=ruling)


def choose_ground(rng: np.random.Generator, colours: Sequence[Rgb], *, strict: bool = False) -> Ground:
    """A ground on which all these shades are seen well; `strict` as in `tells_apart`."""
    shades = lab(colours)
    for _ in range(14):
        ground = _any_ground(rng)
        tones = lab([tone for tone in (ground.first, ground.second, ground.ruling) if tone is not None])
        if all(tells_apart(shade, tones, strict=strict) for shade in shades):
            return ground
    worst = [_least(shades, lab([option])) for option in SAFE]
    best = SAFE[int(np.argmax(worst))]
    return Ground(first=best, second=best, pattern="plain", ruling=None)


def _least(shades: Floats, tone: Floats) -> float:
    """The least distance of any shade [n, 3] to a tone [1, 3], where only lightness counts in full."""
    weights = np.array([1.0, 0.6, 0.6])
    distance: npt.NDArray[np.float64] = np.sqrt((((shades - tone) * weights) ** 2).sum(-1))
    return float(distance.min())


def paint_ground(rng: np.random.Generator, size: tuple[int, int], ground: Ground) -> Image.Image:
    """The ground as an RGB picture of `size` (width, height)."""
    image = blend(rng, size, ground.first, ground.second, ground.pattern)
    if ground.ruling is not None:
        draw = ImageDraw.Draw(image)
        step = max(8, round(min(size) * rng.uniform(0.06, 0.2)))
        for y in range(int(rng.integers(step)), size[1], step):
            draw.line((0, y, size[0], y), fill=ground.ruling)
        if rng.random() < 0.7:
            for x in range(int(rng.integers(step)), size[0], step):
                draw.line((x, 0, x, size[1]), fill=ground.ruling)
    return image
