"""What cameras, scanners and codecs do to a picture: small losses after which every colour keeps its name."""

import io

import numpy as np
from PIL import Image, ImageChops, ImageFilter

NORMAL = np.sort(np.random.default_rng(0).standard_normal(256))  # turns even bytes into normal noise


def lit_picture(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """The RGB picture as a phone takes it in poor light: uneven, soft and grainy; five of six stay as they were."""
    if rng.random() > 1 / 6:
        return image
    width, height = image.size
    centre = rng.uniform(0.2, 0.8, 2)
    far = np.hypot(
        (np.arange(width) / width - centre[0])[None], (np.arange(height) / height - centre[1])[:, None]
    )  # [height, width]
    light = 1 + rng.uniform(-0.05, 0.08) - rng.uniform(0.05, 0.3) * far**2
    grain = rng.standard_normal((height, width, 1)) * rng.uniform(1, 7) + rng.standard_normal((height, width, 3)) * 3
    seen = np.asarray(image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.2, 1.0)))), np.float32)
    return Image.fromarray(np.clip(seen * light[..., None] + grain, 0, 255).astype(np.uint8))


def worn_picture(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """The RGB picture after wear, of the same size; in 40 % of all cases as it was."""
    if rng.random() < 0.4:
        return image
    if rng.random() < 0.3:
        image = _retoned(rng, image)
    if rng.random() < 0.25:
        image = _rescaled(rng, image)
    if rng.random() < 0.2:
        image = image.filter(ImageFilter.GaussianBlur(float(rng.uniform(0.3, 0.3 + min(image.size) / 250))))
    if rng.random() < 0.25:
        image = _noisy(rng, image)
    if rng.random() < 0.08:
        image = _framed(rng, image)
    return _coded(rng, image)


def _retoned(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    gamma, contrast, lift = rng.uniform(0.88, 1.14), rng.uniform(0.9, 1.08), rng.uniform(-0.03, 0.03)
    steps = np.linspace(0, 1, 256) ** gamma
    table: list[int] = []
    for tint in rng.uniform(0.975, 1.025, 3):
        tone = ((steps - 0.5) * contrast + 0.5 + lift) * tint * 255
        table += np.clip(tone, 0, 255).round().astype(int).tolist()
    return image.point(table)


def _rescaled(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """Smaller or larger and back."""
    least = max(0.5, min(0.95, 64 / min(image.size)))
    share = rng.uniform(least, 1.2)
    ways = [Image.Resampling.BILINEAR, Image.Resampling.BICUBIC, Image.Resampling.LANCZOS, Image.Resampling.BOX]
    way, back = ways[int(rng.integers(4))], ways[int(rng.integers(4))]
    other = (max(8, round(image.size[0] * share)), max(8, round(image.size[1] * share)))
    return image.resize(other, way).resize(image.size, back)


def _noisy(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    width, height = image.size
    table = np.clip(128 + NORMAL * rng.uniform(1.5, 8), 0, 255).round().astype(int).tolist()
    if rng.random() < 0.5:
        grain = Image.frombytes("L", image.size, rng.bytes(width * height)).point(table)
        noise = Image.merge("RGB", [grain] * 3)
    else:
        noise = Image.frombytes("RGB", image.size, rng.bytes(width * height * 3)).point(table * 3)
    return ImageChops.add(image, noise, 1, -128)


def _framed(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    """A thin frame, into which the picture is shrunk by as much."""
    wide = int(rng.integers(1, max(2, min(image.size) // 60) + 1))
    shade = int(rng.choice([0, 40, 128, 200, 255]))
    framed = Image.new("RGB", image.size, (shade, shade, shade))
    inner = (image.size[0] - 2 * wide, image.size[1] - 2 * wide)
    framed.paste(image.resize(inner, Image.Resampling.BILINEAR), (wide, wide))
    return framed


def _coded(rng: np.random.Generator, image: Image.Image) -> Image.Image:
    roll = rng.random()
    if roll < 0.3:
        return image
    if roll > 0.94:
        return image.quantize(int(rng.integers(24, 256)), dither=Image.Dither.NONE).convert("RGB")
    stored = io.BytesIO()
    quality = int(rng.integers(25, 96))
    if roll > 0.88:
        image.save(stored, "WEBP", quality=quality, method=0)
    else:
        image.save(stored, "JPEG", quality=quality, subsampling=int(rng.choice([0, 2])))
    stored.seek(0)
    with Image.open(stored) as opened:
        return opened.convert("RGB")
