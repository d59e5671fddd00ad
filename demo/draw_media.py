"""Draws the pictures in examples/media: a ferry on a lake, a bar chart, shapes, a number. Runs no server."""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter, ImageFont

Pixels = npt.NDArray[np.float64]  # [height, width, 3], 0 to 255
WIDTH, HEIGHT, SHORE = 640, 480, 230
INK = (40, 44, 52)


def rough(rng: np.random.Generator, width: int, height: int, octaves: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Smooth noise of several sizes, about -1 to 1: [height, width]."""
    total = np.zeros((height, width))
    for octave in octaves:
        grid = rng.standard_normal((max(2, height // octave), max(2, width // octave))).astype(np.float32)
        total += np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)) * octave
    return total / sum(octaves)


def gradient(top: tuple[int, int, int], bottom: tuple[int, int, int], height: int, width: int) -> Pixels:
    """A vertical run from one colour to another."""
    share = np.linspace(0, 1, height)[:, None, None]
    return np.broadcast_to((1 - share) * np.array(top) + share * np.array(bottom), (height, width, 3)).copy()


def landscape(rng: np.random.Generator) -> Pixels:
    """Evening sky with clouds, two ranges of hills, and a lake with ripples."""
    scene = np.zeros((HEIGHT, WIDTH, 3))
    scene[:SHORE] = gradient((92, 140, 196), (246, 196, 140), SHORE, WIDTH)
    clouds = np.clip(rough(rng, WIDTH, SHORE, (96, 48, 24, 12)), 0, 1)[:, :, None]
    scene[:SHORE] = scene[:SHORE] * (1 - 0.55 * clouds) + np.array([255, 238, 224]) * 0.55 * clouds
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    sun = np.exp(-((columns - 470) ** 2 + (rows - 150) ** 2) / (2 * 26**2))[:, :, None]
    scene += sun * np.array([150, 120, 60])
    for base, tall, colour in ((SHORE - 46, 34, (110, 116, 140)), (SHORE - 22, 22, (62, 84, 74))):
        ridge = base + tall * rough(rng, WIDTH, 2, (120, 40, 16))[0]
        inside = (rows > ridge[None, :]) & (rows < SHORE)
        texture = 1 + 0.16 * rough(rng, WIDTH, HEIGHT, (10, 5, 3))[:, :, None]
        scene = np.where(inside[:, :, None], np.array(colour) * texture, scene)
    water = gradient((196, 164, 132), (30, 66, 92), HEIGHT - SHORE, WIDTH)
    ripples = rough(rng, WIDTH, 4 * (HEIGHT - SHORE), (24, 12, 6))[::4][: HEIGHT - SHORE, :, None]
    scene[SHORE:] = water * (1 + 0.35 * ripples)
    glitter = np.exp(-((columns[SHORE:] - 470) ** 2) / (2 * 34**2))[:, :, None] * np.clip(ripples * 3, 0, 1)
    scene[SHORE:] += glitter * np.array([190, 150, 80])
    return scene


def ferry(image: Image.Image) -> None:
    """A white and red ferry with windows, funnel, flag and wake, drawn over the landscape."""
    draw = ImageDraw.Draw(image, "RGBA")
    draw.polygon([(96, 306), (420, 306), (392, 350), (128, 350)], fill=(176, 42, 40))
    draw.rectangle((108, 292, 410, 308), fill=(240, 240, 236))
    draw.rectangle((150, 252, 372, 292), fill=(248, 248, 244))
    draw.rectangle((196, 222, 318, 252), fill=(236, 236, 230))
    for left in range(162, 360, 22):
        draw.rectangle((left, 262, left + 13, 276), fill=(52, 84, 116))
    for left in range(206, 306, 20):
        draw.rectangle((left, 231, left + 11, 242), fill=(60, 96, 128))
    draw.polygon([(330, 252), (336, 200), (362, 200), (360, 252)], fill=(214, 140, 36))
    draw.rectangle((334, 200, 363, 210), fill=INK)
    draw.line((124, 292, 124, 226), fill=INK, width=3)
    draw.polygon([(126, 228), (160, 238), (126, 248)], fill=(40, 96, 168))
    draw.text((176, 312), "PIXELFERRY", fill=(250, 250, 250), font=ImageFont.load_default(26))
    for step in range(7):
        draw.line(
            (86 - 9 * step, 352 + 9 * step, 430 + 13 * step, 352 + 9 * step),
            fill=(255, 255, 255, 90 - 11 * step),
            width=3,
        )


def photo(seed: int = 7) -> Image.Image:
    """A photo-like scene of 640 x 480: no flat areas, soft edges, grain."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(np.clip(landscape(rng), 0, 255).astype(np.uint8))
    ferry(image)
    soft = np.asarray(image.filter(ImageFilter.GaussianBlur(0.7)), dtype=np.float64)
    grain = rng.standard_normal((HEIGHT, WIDTH, 1)) * 4.5 + rng.standard_normal((HEIGHT, WIDTH, 3)) * 1.5
    return Image.fromarray(np.clip(soft + grain, 0, 255).astype(np.uint8))


def chart() -> Image.Image:
    """A bar chart of 800 x 500 with a title, axis and five labelled values."""
    image = Image.new("RGB", (800, 500), (255, 255, 255))
    draw = ImageDraw.Draw(image)
    draw.text((400, 36), "Passengers per month, thousands", fill=INK, font=ImageFont.load_default(28), anchor="mm")
    values = {"Jan": 12, "Feb": 17, "Mar": 26, "Apr": 41, "May": 33}
    for tick in range(0, 51, 10):
        y = 430 - 7 * tick
        draw.line((90, y, 760, y), fill=(214, 218, 224), width=1)
        draw.text((76, y), str(tick), fill=INK, font=ImageFont.load_default(18), anchor="rm")
    for column, (name, value) in enumerate(values.items()):
        left = 120 + 128 * column
        draw.rectangle((left, 430 - 7 * value, left + 84, 430), fill=(38, 110, 176))
        draw.text((left + 42, 418 - 7 * value), str(value), fill=INK, font=ImageFont.load_default(20), anchor="mm")
        draw.text((left + 42, 452), name, fill=INK, font=ImageFont.load_default(20), anchor="mm")
    draw.line((90, 430, 760, 430), fill=INK, width=2)
    return image


def shapes() -> Image.Image:
    """A red square, a green circle and a blue triangle from left to right, 480 x 200."""
    image = Image.new("RGB", (480, 200), (250, 250, 250))
    draw = ImageDraw.Draw(image)
    draw.rectangle((40, 50, 140, 150), fill=(204, 32, 32))
    draw.ellipse((190, 50, 290, 150), fill=(32, 148, 64))
    draw.polygon([(390, 46), (446, 150), (334, 150)], fill=(32, 72, 204))
    return image


def red_circle() -> Image.Image:
    """A red circle on a pale ground, right of the middle, 320 x 240."""
    image = Image.new("RGB", (320, 240), (236, 240, 230))
    ImageDraw.Draw(image).ellipse((170, 70, 270, 170), fill=(214, 30, 34))
    return image


def number() -> Image.Image:
    """A printed 47, 240 x 160."""
    image = Image.new("RGB", (240, 160), (255, 255, 255))
    ImageDraw.Draw(image).text((120, 80), "47", fill=(20, 20, 24), font=ImageFont.load_default(96), anchor="mm")
    return image


def main(argv: list[str]) -> int:
    """`python -m demo.draw_media DIR` writes the five pictures."""
    if len(argv) != 1:
        print("usage: python -m demo.draw_media DIR", file=sys.stderr)
        return 2
    folder = Path(argv[0])
    folder.mkdir(parents=True, exist_ok=True)
    photo().save(folder / "ferry.jpg", quality=88)
    chart().save(folder / "chart.png", optimize=True)
    shapes().save(folder / "shapes.png", optimize=True)
    red_circle().save(folder / "red-circle.png", optimize=True)
    number().save(folder / "number.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
