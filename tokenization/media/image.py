"""Encoded images become RGB pixels and uint8 patches; Pillow is the specification."""

import io
import struct
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import BmpImagePlugin, ExifTags, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from tokenization.chat.errors import ChatError

# By content, never by suffix; importing the plugins registers them, so that opening never loads any other one.
_PLUGINS = (JpegImagePlugin, PngImagePlugin, WebPImagePlugin, GifImagePlugin, BmpImagePlugin)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
_NOT_AN_IMAGE = "this is not an image that the server reads (JPEG, PNG, WebP, GIF, BMP), or its header is damaged"
_DAMAGED = "the image data is damaged or incomplete"
# What Pillow and the libraries below it raise on hostile bytes. MemoryError is here for the header only: a size that
# passed the caps and does not fit is our trouble, not the client's.
_PILLOW_ERRORS: tuple[type[Exception], ...] = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError,
    EOFError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """Sizes are those of the upright image, in pixels."""

    width: int
    height: int
    orientation: int  # EXIF, 1 to 8; 1: as stored


def read_header(data: bytes, *, max_source_pixels: int, param: str) -> ImageHeader:
    """Size and orientation, without decoding a pixel. Raises ChatError, also when width x height is above the cap."""
    return _open(data, max_source_pixels, param)[1]


def decode_rgb(data: bytes, *, max_source_pixels: int, param: str, on_white: bool = True) -> Image.Image:
    """The first frame, upright, as RGB, of the size in `read_header`. Raises ChatError, also for damaged data.

    Transparency lies on white, as in transformers' processors. Not `on_white`: what is below it shows.
    """
    image, header = _open(data, max_source_pixels, param)
    with _pillow(_DAMAGED, param):
        image.load()
        if header.orientation in _TRANSPOSE:
            image = image.transpose(_TRANSPOSE[header.orientation])
        image = _to_rgb(image) if on_white else image.convert("RGB")
    if image.size != (header.width, header.height):
        raise ChatError(_DAMAGED, param)
    return image


def resize(image: Image.Image, *, width: int, height: int, bilinear: bool = False) -> Image.Image:
    """Bicubic, where nothing else is asked for."""
    if image.size == (width, height):
        return image
    return image.resize((width, height), Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC)


def padded(image: Image.Image, *, width: int, height: int, value: int) -> Image.Image:
    """An RGB image in the top left corner of one of this size, the rest `value` in all channels."""
    if image.size == (width, height):
        return image
    whole = Image.new("RGB", (width, height), (value, value, value))
    whole.paste(image, (0, 0))
    return whole


def cover(image: Image.Image, *, edge: int, side: int) -> Image.Image:
    """The centre square of `side` pixels, once the shorter edge has `edge` of them; edge >= side."""
    width, height = image.size
    if width <= height:
        image = resize(image, width=edge, height=edge * height // width)
    else:
        image = resize(image, width=edge * width // height, height=edge)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image.crop((left, top, left + side, top + side))


def to_patches(image: Image.Image, *, patch: int, merge: int) -> np.ndarray:
    """uint8 [h/patch * w/patch, 3 * patch * patch]: rows (h', w', merge, merge), columns (channel, y, x)."""
    width, height = image.size
    rows, columns = height // (patch * merge), width // (patch * merge)
    # One row of one patch is one item of `patch` bytes, so that numpy moves it whole.
    line = np.dtype(f"V{patch}")
    out = np.empty((rows, columns, merge, merge, 3, patch), line)
    for channel, plane in enumerate(image.split()):
        lines = np.asarray(plane).view(line).reshape(rows, merge, patch, columns, merge)
        out[:, :, :, :, channel] = lines.transpose(0, 3, 1, 4, 2)
    return out.view(np.uint8).reshape(rows * columns * merge * merge, 3 * patch * patch)


# ---- details


def _open(data: bytes, max_source_pixels: int, param: str) -> tuple[Image.Image, ImageHeader]:
    with _pillow(_NOT_AN_IMAGE, param, (*_PILLOW_ERRORS, MemoryError)):
        image: Image.Image = Image.open(io.BytesIO(data), formats=FORMATS)
        width, height = image.size
        orientation = _orientation(image, data)
    if width < 1 or height < 1:
        raise ChatError(_NOT_AN_IMAGE, param)
    if width * height > max_source_pixels:
        raise ChatError(
            f"the image has {width} x {height} = {width * height} pixels, at most {max_source_pixels} are allowed",
            param,
        )
    if orientation >= 5:
        width, height = height, width
    return image, ImageHeader(width=width, height=height, orientation=orientation)


@contextmanager
def _pillow(message: str, param: str, errors: tuple[type[Exception], ...] = _PILLOW_ERRORS) -> Iterator[None]:
    """Pillow's many errors become one, without its text (which may hold addresses); its warnings are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ChatError:
            raise
        except errors:
            raise ChatError(message, param) from None


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode == "RGB" and image.info.get("transparency") is None:
        return image
    if "A" in image.getbands() or image.info.get("transparency") is not None:
        return flattened(image.convert("RGBA"))
    return image.convert("RGB")


def flattened(image: Image.Image) -> Image.Image:
    """A picture of mode RGBA on white, as RGB."""
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")


def _orientation(image: Image.Image, data: bytes) -> int:
    """The EXIF orientation, 1 where there is none or it cannot be read: a damaged tag spoils no picture."""
    if image.format == "PNG" and "exif" not in image.info:
        late = _late_png_exif(data)
        if late is not None:
            image.info["exif"] = b"Exif\0\0" + late
    try:
        # The base class's getexif reads what the header holds; PNG's own would decode the whole image.
        value = Image.Image.getexif(image).get(ExifTags.Base.Orientation, 1)
    except _PILLOW_ERRORS:
        return 1
    return value if isinstance(value, int) and value in _TRANSPOSE else 1


def _late_png_exif(data: bytes) -> bytes | None:
    """The eXIf chunk of a PNG, which may also follow the pixels, where opening does not look."""
    at = 8
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        if name == b"eXIf":
            return data[at + 8 : at + 8 + length]
        at += 12 + length
    return None
