"""Colours that people call by one name, grounds that they stand on, and how far two colours are apart."""

import numpy as np

Rgb = tuple[int, int, int]

# Hue in degrees, saturation and value: from and to.
_RANGES: dict[str, tuple[tuple[float, float], tuple[float, float], tuple[float, float]]] = {
    "red": ((350, 366), (0.75, 1.0), (0.7, 0.95)),
    "orange": ((22, 34), (0.85, 1.0), (0.9, 1.0)),
    "yellow": ((49, 58), (0.78, 1.0), (0.9, 1.0)),
    "green": ((105, 150), (0.5, 1.0), (0.45, 0.8)),
    "blue": ((208, 234), (0.65, 1.0), (0.6, 1.0)),
    "purple": ((270, 292), (0.5, 0.9), (0.45, 0.8)),
    "black": ((0, 360), (0.0, 0.2), (0.03, 0.13)),
    "white": ((0, 360), (0.0, 0.02), (0.97, 1.0)),
}
_SPREAD = {"yellow": (0.25, 0.06), "orange": (0.15, 0.07), "white": (0.0, 0.05), "black": (0.1, 0.0)}
# The colours of paint programs: two sets of swatches.
_SWATCHES: dict[str, tuple[Rgb, ...]] = {
    "red": ((237, 28, 36), (255, 0, 0)),
    "orange": ((255, 127, 39), (255, 140, 0)),
    "yellow": ((255, 242, 0), (255, 255, 0)),
    "green": ((34, 177, 76), (0, 128, 0)),
    "blue": ((0, 84, 210), (0, 0, 255)),
    "purple": ((163, 73, 164), (128, 0, 128)),
    "black": ((0, 0, 0), (20, 20, 20)),
    "white": ((255, 255, 255), (255, 255, 255)),
}
_CANVASES: tuple[Rgb, ...] = ((255, 255, 255),) * 6 + (
    (195, 195, 195),
    (239, 228, 176),
    (153, 217, 234),
    (127, 127, 127),
)
_GROUNDS: tuple[Rgb, ...] = (
    (250, 250, 247), (243, 239, 228), (255, 248, 225), (227, 242, 253), (232, 245, 233), (252, 228, 236),
    (236, 239, 241), (207, 216, 220), (189, 189, 189), (215, 204, 200), (178, 223, 219), (197, 202, 233),
    (120, 124, 130), (69, 90, 100), (38, 50, 56), (33, 33, 48), (48, 40, 36), (20, 60, 56),
)  # fmt: skip
_APART = 42.0  # the least distance in CIELAB between a thing and its ground


def ground(look: str, rng: np.random.Generator) -> Rgb:
    """What things stand on."""
    choices = _CANVASES if look == "paint program" else _GROUNDS
    return choices[int(rng.integers(len(choices)))]


def paint(colour: str, look: str, rng: np.random.Generator) -> Rgb:
    """One of the colours that have this name."""
    if look == "paint program":
        return _SWATCHES[colour][int(rng.integers(2))]
    hue, saturation, value = (float(rng.uniform(*span)) for span in _RANGES[colour])
    return from_hsv(hue, saturation, value)


def from_hsv(hue: float, saturation: float, value: float) -> Rgb:
    """Degrees, 0 to 1, 0 to 1."""
    k = (np.array([5.0, 3.0, 1.0]) + hue / 60) % 6
    rgb = value - value * saturation * np.clip(np.minimum(k, 4 - k), 0, 1)
    red, green, blue = (int(round(channel * 255)) for channel in rgb)
    return red, green, blue


def stands_out(colour: Rgb, behind: Rgb) -> bool:
    """Whether somebody would see a thing of this colour at once."""
    return bool(np.linalg.norm(_lab(colour) - _lab(behind)) >= _APART)


def lighter_and_darker(name: str, rgb: Rgb) -> tuple[Rgb, Rgb]:
    """The ends of a gradient that keeps the colour's name."""
    lighter, darker = _SPREAD.get(name, (0.22, 0.25))
    return mixed(rgb, (255, 255, 255), lighter), mixed(rgb, (0, 0, 0), darker)


def mixed(one: Rgb, other: Rgb, share: float) -> Rgb:
    """`share` of the other in the one."""
    red, green, blue = (int(round(a + (b - a) * share)) for a, b in zip(one, other, strict=True))
    return red, green, blue


def _lab(rgb: Rgb) -> np.ndarray:
    """CIELAB, white point D65 (IEC 61966-2-1, CIE 15)."""
    v = np.array(rgb) / 255
    linear = np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = matrix @ linear / np.array([0.9505, 1.0, 1.089])
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])
