"""A picture like a photo: two coloured things on a wooden table, with shadows, blur and the noise of a phone."""

import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

WIDTH, HEIGHT = 640, 480
FINE = 3  # drawn so many times larger, and made smaller: edges are soft
RED, BLUE = (200, 36, 32), (38, 84, 190)


def wood(rng: np.random.Generator) -> np.ndarray:
    """float [HEIGHT, WIDTH, 3]: boards with a grain along x."""
    grain = rng.normal(0, 1, (HEIGHT, 1)).cumsum(axis=0) * 1.2 + rng.normal(0, 3.5, (HEIGHT, 1))
    few = Image.fromarray((rng.random((HEIGHT, 12)) * 255).astype(np.uint8))
    lengthwise = np.asarray(few.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC), np.float64)
    shade = (grain - grain.mean())[..., None] * 0.7 + (lengthwise[..., None] - 128) / 14
    boards = 1 - 0.18 * (np.abs((np.arange(HEIGHT) % 160) - 2) < 2)[:, None, None]
    return np.asarray((np.array([168, 124, 82]) + shade * np.array([1.0, 0.85, 0.65])) * boards)


def things(inks: tuple[Any, Any], mode: str, off: int = 0) -> Image.Image:
    """A disc and a square, moved by `off` pixels; FINE times too large."""
    picture = Image.new(mode, (WIDTH * FINE, HEIGHT * FINE))
    draw = ImageDraw.Draw(picture)
    draw.ellipse([(edge + off) * FINE for edge in (50, 60, 240, 250)], fill=inks[0])
    draw.rectangle([(edge + off) * FINE for edge in (340, 260, 490, 410)], fill=inks[1])
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS)


def table_photo() -> bytes:
    """The JPEG."""
    rng = np.random.default_rng(39)
    shadows = things((255, 255), "L", off=9).filter(ImageFilter.GaussianBlur(9))
    picture = wood(rng) * (1 - 0.45 * np.asarray(shadows, np.float64)[..., None] / 255)
    thing = np.asarray(things((RED, BLUE), "RGBA"), np.float64)
    alpha = thing[..., 3:] / 255
    picture = picture * (1 - alpha) + thing[..., :3] * alpha
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    light = 1.16 - 0.5 * np.hypot((x - 200) / WIDTH, (y - 110) / HEIGHT) ** 1.3
    picture = picture * light[..., None] * np.array([1.03, 1.0, 0.95]) + rng.normal(0, 5, (HEIGHT, WIDTH, 3))
    sink = io.BytesIO()
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).filter(ImageFilter.GaussianBlur(0.7)).save(
        sink, "JPEG", quality=88
    )
    return sink.getvalue()
