"""Printed numbers: the fonts of this machine whose digits can be read, and a number drawn in one of them."""

import sysconfig
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from demo.colours import Rgb

FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "/Library/Fonts", "C:/Windows/Fonts")
# Fonts without digits, with digits of another script or style, or with strokes too thin to see.
ODD = (
    "symbol emoji math dingbat icon awesome stixnonuni stixsiz cmsy cmex cmmi braille hairline thin extralight "
    "music barcode webding wingding blank lastresort fallback d050000l"
).split()


@cache
def font_paths() -> tuple[str, ...]:
    """Files of this machine's fonts whose ten digits all differ and are not empty, in a fixed order. Takes a second."""
    folders = [Path(folder) for folder in FOLDERS]
    folders.append(Path(sysconfig.get_paths()["purelib"]) / "matplotlib" / "mpl-data" / "fonts" / "ttf")
    found = [path for folder in folders for kind in ("ttf", "otf", "ttc") for path in folder.rglob(f"*.{kind}")]
    named = {path.name: path for path in reversed(found)}  # one of each name
    return tuple(
        str(path)
        for name, path in sorted(named.items())
        if not any(word in name.lower() for word in ODD) and _has_digits(path)
    )


def _has_digits(path: Path) -> bool:
    try:
        font = ImageFont.truetype(str(path), 24)
        masks = [_glyph(font, digit) for digit in "0123456789"]
        missing = _glyph(font, "\U000f1234")  # for private use: drawn as what stands for a missing character
    except (OSError, ValueError):
        return False
    heights = [mask[1] for mask in masks]
    filled = all(any(mask[2]) for mask in masks)
    # Digits that sink below the line (old style) have other heights than their neighbours.
    return filled and len(set(masks)) == 10 and missing not in masks and min(heights) > 0.85 * max(heights)


def _glyph(font: ImageFont.FreeTypeFont, text: str) -> tuple[int, int, bytes]:
    mask = font.getmask(text, mode="L")
    return mask.size[0], mask.size[1], bytes(mask)


@cache
def _scale(path: str) -> float:
    """The height of digits in a font's size."""
    box = _font(path, 100).getbbox("0123456789")
    return float(box[3] - box[1]) / 100


def _font(path: str, size: float) -> ImageFont.FreeTypeFont:
    """A font by its file; the empty path is Pillow's own."""
    if path:
        return ImageFont.truetype(path, size)
    own = ImageFont.load_default(size)
    if not isinstance(own, ImageFont.FreeTypeFont):
        raise RuntimeError("this Pillow was built without FreeType")
    return own


def number_mask(rng: np.random.Generator, size: tuple[int, int], digits: str) -> Image.Image:
    """The number as a picture of mode L, cut to its ink, not larger than 96 % of `size` (width, height)."""
    paths = font_paths()
    path = "" if not paths or rng.random() < 0.06 else paths[int(rng.integers(len(paths)))]
    low, high = max(0.12, 10 / size[1]), 0.8
    height = size[1] * float(low * (high / low) ** rng.random())
    angle = float(rng.uniform(-8, 8)) if rng.random() < 0.35 else 0.0
    stroke = rng.random() < 0.06
    sharp = rng.random() < 0.08
    for _ in range(8):
        font = _font(path, max(8.0, height / _scale(path)))
        width = max(1, round(height / 40)) if stroke else 0
        box = font.getbbox(digits, stroke_width=width)
        tile = Image.new("L", (int(box[2] - box[0]) + 4, int(box[3] - box[1]) + 4))
        draw = ImageDraw.Draw(tile)
        draw.fontmode = "1" if sharp else "L"
        draw.text((2 - box[0], 2 - box[1]), digits, fill=255, font=font, stroke_width=width)
        if angle:
            tile = tile.rotate(angle, Image.Resampling.BICUBIC, expand=True)
        ink = tile.getbbox() or (0, 0, 1, 1)
        tile = tile.crop(ink)
        over = max(tile.size[0] / (0.96 * size[0]), tile.size[1] / (0.96 * size[1]))
        if over <= 1:
            return tile
        height *= 0.98 / over
    return tile.resize((max(1, int(tile.size[0] / over)), max(1, int(tile.size[1] / over))), Image.Resampling.BOX)


def paint_number(rng: np.random.Generator, image: Image.Image, digits: str, colour: Rgb) -> tuple[int, int, int, int]:
    """Prints a number anywhere on `image`; returns the box of its ink (x1, y1, x2, y2)."""
    mask = number_mask(rng, image.size, digits)
    room = (image.size[0] - mask.size[0], image.size[1] - mask.size[1])
    centred = rng.random() < 0.35
    x, y = (side // 2 if centred else int(rng.integers(side + 1)) for side in room)
    image.paste(colour, (x, y), mask)
    return x, y, x + mask.size[0], y + mask.size[1]
