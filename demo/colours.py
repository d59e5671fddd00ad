"""The eight colour names: which shades carry each, and which shades can be told from one another.

A shade belongs to a name when the nearest of all known shades, in CIE L*a*b*, is one of that name's; shades of other
names that people use (pink, brown, grey, cyan ...) are known too, so that nothing near them is ever drawn as one of the
eight.
"""

import colorsys
from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt

from demo.answers import COLOURS

Rgb = tuple[int, int, int]
Floats = npt.NDArray[np.float64]

# What programs call by these names: the first ones are the plainest, drawn most often; then the palettes of CSS,
# MS Paint, matplotlib, seaborn, Material, Tailwind, Google and Office.
PURE = {
    "red": "ff0000 ed1c24 d62728",
    "green": "008000 00ff00 22b14c 2ca02c",
    "blue": "0000ff 3f48cc 1f77b4",
    "yellow": "ffff00 fff200",
    "purple": "800080 a020f0 a349a4 9467bd",
    "orange": "ffa500 ff8000 ff7f27 ff7f0e",
    "black": "000000",
    "white": "ffffff",
}
MORE = {
    "red": "dc143c f44336 ef4444 ea4335 c00000 c44e52 e53935 cc0000 a00000 8b0000",
    "green": "228b22 32cd32 2e8b57 006400 4caf50 22c55e 34a853 00b050 55a868 3cb371 00c000 92d050 006837",
    "blue": "4169e1 1e90ff 0000cd 2196f3 3b82f6 4285f4 0070c0 4c72b0 0000a0 00008b 4682b4 0055ff",
    "yellow": "ffd700 ffeb3b ffe119 fde047 ffee00 f0e000 e6d800 ffff33",
    "purple": "8a2be2 9400d3 663399 4b0082 9370db 9932cc 9c27b0 a855f7 9b59b6 7030a0 6a0dad 8172b3",
    "orange": "ff8c00 ff9800 f97316 dd8452 ff9900 e67e22 f58231 ff7700",
    "black": "0a0a0a 111111 141418 1c1c1c 0c0c14",
    "white": "fafafa f8f8ff fffafa fcfcf5 f7f7f7",
}
OTHERS = (
    "ffc0cb ff69b4 ff1493 ff00ff c71585 ee82ee da70d6 e0b0ff ffaec9 dda0dd e91e63 b03060 "  # pink, magenta, violet
    "a52a2a 8b4513 a0522d b97a57 8c564b 800000 cd853f d2691e 6b3a1e 4a2c10 "  # brown, maroon
    "404040 606060 808080 a0a0a0 c0c0c0 d9d9d9 e6e6e6 2f2f2f 7092be 708090 "  # grey
    "00ffff 00ced1 17becf 40e0d0 008080 00a2e8 87ceeb add8e6 00bfff 99d9ea 006080 e0ffff "  # cyan, teal, sky
    "808000 adff2f b5e61d bcbd22 9acd32 cddc39 6b8e23 c8e000 ccff00 556b2f "  # olive and yellow-green
    "ffbf00 ffc90e ffc000 daa520 b8860b d4a017 "  # amber, between orange and yellow
    "ff6b5b ff8866 d08060 c46a6a "  # salmon
    "ff4500 ff5722 ff7f50 fa8072 e9967a ffb6a0 ffdab9 f5deb3 efe4b0 f0e68c ffcc99 ffffcc fff8dc faebd7 "
    "c8bfe7 e6e6fa 483d8b 5500ff 6a5acd 000040 191970 90ee90 c0ffc0 00ff7f 00fa9a 98fb98 013220"
)


def parse(text: str) -> tuple[Rgb, ...]:
    """Colours of six hexadecimal digits each, split by spaces."""
    values = [bytes.fromhex(word) for word in text.split()]
    return tuple((value[0], value[1], value[2]) for value in values)


def lab(colours: Sequence[Rgb] | npt.NDArray[np.generic]) -> Floats:
    """CIE L*a*b* (D65) of sRGB values 0..255: [..., 3] -> float64 [..., 3]."""
    unit = np.asarray(colours, dtype=np.float64) / 255
    linear = np.where(unit <= 0.04045, unit / 12.92, ((unit + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = linear @ matrix.T / np.array([0.9505, 1.0, 1.089])
    root = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    x, y, z = root[..., 0], root[..., 1], root[..., 2]
    return np.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], axis=-1)


@cache
def _shades(name: str) -> tuple[tuple[Rgb, ...], tuple[Rgb, ...]]:
    """The plain shades of a name, and the further ones."""
    return parse(PURE[name]), parse(MORE[name])


@cache
def _known() -> tuple[Floats, npt.NDArray[np.int64]]:
    """L*a*b* of every known shade [shades, 3], and the index of its name in COLOURS, -1 for none of them [shades]."""
    values: list[Rgb] = []
    owners: list[int] = []
    for index, name in enumerate(COLOURS):
        mine = [*_shades(name)[0], *_shades(name)[1]]
        values += mine
        owners += [index] * len(mine)
    others = parse(OTHERS)
    return lab([*values, *others]), np.array(owners + [-1] * len(others))


def margin(colour: Rgb, name: str) -> float:
    """How much nearer a shade is to its name's shades than to any other, in L*a*b* units; below 0 where it is not."""
    shades, owners = _known()
    distances = np.sqrt(((shades - lab([colour])) ** 2).sum(-1))  # [shades]
    mine = owners == COLOURS.index(name)
    return float(distances[~mine].min() - distances[mine].min())


def name_of(colour: Rgb) -> str | None:
    """The name of the nearest known shade, or None where that is none of the eight."""
    shades, owners = _known()
    owner = int(owners[((shades - lab([colour])) ** 2).sum(-1).argmin()])
    return COLOURS[owner] if owner >= 0 else None


def vary(rng: np.random.Generator, colour: Rgb, name: str, *, by: float) -> Rgb:
    """A shade near `colour` that still clearly bears `name`: hue within 20 * by degrees; or `colour` itself."""
    hue, saturation, value = colorsys.rgb_to_hsv(colour[0] / 255, colour[1] / 255, colour[2] / 255)
    for _ in range(4):
        turn, fade, dim = rng.uniform(-by, by, 3).tolist()
        if name in ("black", "white"):  # their hue is noise: a touch of any tint
            tint, fade = float(rng.random()), abs(fade) * 0.12
            level = max(0.0, min(1.0, value + (abs(dim) if name == "black" else -abs(dim)) * 0.25))
            shade = colorsys.hsv_to_rgb(tint, fade * (4 if name == "black" else 1), level)
        else:
            least = 0.88 if name in ("orange", "yellow") else 0.0  # darker ones are brown and olive
            level = max(least, min(1.0, value + 0.9 * dim))
            shade = colorsys.hsv_to_rgb((hue + turn / 18) % 1, max(0.0, min(1.0, saturation + fade)), level)
        found = (round(shade[0] * 255), round(shade[1] * 255), round(shade[2] * 255))
        if margin(found, name) > 4:
            return found
    return colour


def draw_colour(rng: np.random.Generator, name: str) -> Rgb:
    """A shade of a name: often a plain one, else from a palette people draw with, else near one of those."""
    pure, more = _shades(name)
    roll = rng.random()
    if roll < 0.4:
        return pure[0] if rng.random() < 0.4 else pure[int(rng.integers(len(pure)))]
    every = pure + more
    chosen = every[int(rng.integers(len(every)))]
    return chosen if roll < 0.6 else vary(rng, chosen, name, by=0.2)


def tells_apart(thing: Floats, grounds: Floats, *, strict: bool = False) -> bool:
    """Whether a thing of one shade [3] is easily seen on grounds [n, 3] (all L*a*b*) and not taken for part of them.

    `strict` is for lettering, whose thin strokes need a difference in lightness too.
    """
    delta = np.sqrt(((grounds - thing) ** 2).sum(-1))
    lighter = np.abs(grounds[:, 0] - thing[0])
    chroma, ground_chroma = np.hypot(thing[1], thing[2]), np.hypot(grounds[:, 1], grounds[:, 2])
    turn = np.arctan2(thing[2], thing[1]) - np.arctan2(grounds[:, 2], grounds[:, 1])
    apart = np.degrees(np.abs((turn + np.pi) % (2 * np.pi) - np.pi))
    kin = (chroma > 20) & (ground_chroma > 8) & (apart < 40)  # one hue, as dark red is to red
    dim = (thing[0] < 42) & (grounds[:, 0] < 42)
    seen = delta > np.where(kin, 45, 27)
    if thing[0] > 93 and chroma < 12:  # white: a pale tint alone is not enough
        seen &= lighter > 9
    seen &= ~(kin | dim) | (lighter > np.where(kin, 24, 16))
    if strict:
        seen &= (lighter > 25) & (delta > 40)
    return bool(seen.all())
