"""Pictures that cost what photographs cost to send and to decode, and drawings whose description is known.

Plain noise is five times as large as a JPEG of a photograph, and one flat colour is nothing at all.
"""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Pixels = npt.NDArray[np.float32]

ROUGHNESS = 0.6  # of an octave's amplitude by its size: 1 is as smooth as clouds
GRAIN = 4.0  # a sensor's noise, of 255
QUALITY = 90
FORMATS = {"jpeg": ("JPEG", "image/jpeg"), "png": ("PNG", "image/png"), "webp": ("WEBP", "image/webp")}

# What the embedded demo model names without a fault when it is drawn large on a plain ground.
SHAPES = ("circle", "square", "triangle")
COLOURS = {"red": (237, 28, 36), "green": (0, 128, 0), "blue": (0, 0, 255), "yellow": (255, 242, 0)}
QUESTION = "What is in this picture?"


def photo(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Light and colour that change at every scale, some things with edges in front of them, and grain."""
    longer = max(width, height)
    octaves = [longer >> step for step in range(1, 12) if longer >> step >= 2]
    light = noise(rng, width, height, octaves) * 150 + 128
    warm, cold = (noise(rng, width, height, octaves[:4]) * 70 for _ in range(2))
    rgb = np.stack([light + warm, light - (warm + cold) / 2, light + cold], axis=-1)
    rgb += rng.standard_normal((height, width, 3), dtype=np.float32) * GRAIN
    picture = Image.fromarray(np.clip(rgb, 0, 255).astype(np.uint8))
    things(rng, picture)
    return picture


def noise(rng: np.random.Generator, width: int, height: int, octaves: list[int]) -> Pixels:
    """Smooth noise of several sizes, the large ones stronger, about -1 to 1: [height, width]."""
    total = np.zeros((height, width), np.float32)
    for octave in octaves:
        grid = rng.standard_normal((height // octave + 2, width // octave + 2), dtype=np.float32)
        smooth = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += np.asarray(smooth) * octave**ROUGHNESS
    return total / np.float32(sum(octave**ROUGHNESS for octave in octaves))


def things(rng: np.random.Generator, picture: Image.Image, count: int = 14) -> None:
    """Draw ellipses and rectangles over a picture."""
    draw = ImageDraw.Draw(picture)
    for _ in range(count):
        x, y = rng.uniform(0, picture.width), rng.uniform(0, picture.height)
        reach = max(picture.size) * rng.uniform(0.02, 0.12)
        colour = tuple(int(value) for value in rng.integers(20, 235, 3))
        form = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        form((x - reach, y - reach / 2, x + reach, y + reach), fill=colour)


def encoded(picture: Image.Image, name: str) -> bytes:
    """As one of FORMATS, at a photographer's quality."""
    file = io.BytesIO()
    picture.save(file, FORMATS[name][0], quality=QUALITY)
    return file.getvalue()


def drawing(rng: np.random.Generator) -> tuple[Image.Image, str]:
    """One large shape on a plain light ground, and what it is: `red circle`."""
    shape = SHAPES[int(rng.integers(len(SHAPES)))]
    name = list(COLOURS)[int(rng.integers(len(COLOURS)))]
    side = int(rng.integers(240, 321))
    ground = tuple(int(value) for value in rng.integers(205, 226, 3))
    picture = Image.new("RGB", (side, side), ground)
    draw = ImageDraw.Draw(picture)
    reach = side * rng.uniform(0.2, 0.3)
    x, y = (side / 2 + rng.uniform(-0.1, 0.1) * side for _ in range(2))
    box = (x - reach, y - reach, x + reach, y + reach)
    if shape == "circle":
        draw.ellipse(box, fill=COLOURS[name])
    elif shape == "square":
        draw.rectangle(box, fill=COLOURS[name])
    else:
        draw.polygon([(x, y - reach), (x - reach, y + reach), (x + reach, y + reach)], fill=COLOURS[name])
    return picture, f"{name} {shape}"
