"""Pictures drawn for tests: photo-like (smooth gradients and a little noise), from fixed seeds."""

import io
import struct
import zlib

import numpy as np
from PIL import ExifTags, Image


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """An RGB picture of smooth waves with noise."""
    rng = np.random.default_rng([seed, width, height])
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    a, b, c = rng.uniform(20, 90, 3)
    waves = np.stack([np.sin(x / a + y / b), np.cos(x / c - y / a), np.sin((x + 2 * y) / b)], axis=-1)
    pixels = 127 + 80 * waves + rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def with_alpha(width: int, height: int) -> Image.Image:
    """An RGBA picture whose opacity falls from left to right."""
    image = photo(width, height).convert("RGBA")
    image.putalpha(Image.linear_gradient("L").rotate(90).resize((width, height)))
    return image


def encoded(
    image: Image.Image, form: str, *, orientation: int | None = None, quality: int = 88, transparency: object = None
) -> bytes:
    """File bytes; with `orientation`, an EXIF tag in front of the pixels; `transparency`: a colour, or its index."""
    exif = Image.Exif()
    if orientation is not None:
        exif[ExifTags.Base.Orientation] = orientation
    buffer = io.BytesIO()
    if form == "WEBP":
        image.save(buffer, form, lossless=True, exif=exif.tobytes())
    elif form == "JPEG":
        image.save(buffer, form, quality=quality, exif=exif.tobytes())
    elif form == "PNG" and orientation is not None:
        image.save(buffer, form, exif=exif.tobytes())
    elif transparency is not None:
        image.save(buffer, form, transparency=transparency)
    else:
        image.save(buffer, form)
    return buffer.getvalue()


def png_chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))


def bomb_png(width: int, height: int) -> bytes:
    """A valid PNG of one grey level: a few kilobytes for any size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    packer = zlib.compressobj(9)
    row = bytes(width + 1)
    packed = b"".join(packer.compress(row) for _ in range(min(height, 64))) + packer.flush()
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def bomb_gif(width: int, height: int) -> bytes:
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x08\x0b" + bytes(11) + b"\0;"
    return b"GIF89a" + struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff" + frame


def bomb_bmp(width: int, height: int) -> bytes:
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + info


def bomb_webp(width: int, height: int) -> bytes:
    """A lossless WebP of one colour with a canvas of up to 16384 x 16384, made small by hand from a small one."""
    small = io.BytesIO()
    Image.new("RGB", (16, 16)).save(small, "WEBP", lossless=True)
    data = bytearray(small.getvalue())
    at = data.index(b"VP8L") + 9
    (bits,) = struct.unpack_from("<I", data, at)
    struct.pack_into("<I", data, at, (bits & ~0xFFFFFFF) | (width - 1) | (height - 1) << 14)
    return bytes(data)
