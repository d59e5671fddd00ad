"""Encoded images become RGB pixels and uint8 patches; Pillow is the specification."""

import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

from tokenization.cancel import Check, CheckedFile, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.bmp_runs import RunLengthDecoder
from tokenization.media.containers.exif import TRANSPOSE, orientation_of, stored_box
from tokenization.media.containers.signatures import meant_as
from tokenization.media.effort import BYTES_OF_A_PART, cannot_hold, keeps_coefficients

# By content, never by suffix; importing the plugins registers them, so that opening never loads any other one.
_PLUGINS = (JpegImagePlugin, PngImagePlugin, WebPImagePlugin, GifImagePlugin, BmpImagePlugin)
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")
Image.register_decoder("bmp_rle", RunLengthDecoder)  # in place of the plugin's own
_NOT_AN_IMAGE = "this is not an image that the server reads (JPEG, PNG, WebP, GIF, BMP), or its header is damaged"
_DAMAGED = "the image data is damaged or incomplete"
_JPEG_BLOCK = 1 << 14  # bytes that libjpeg gets at once, and so between two checks
# What Pillow and the libraries below it raise on hostile bytes; MemoryError is the bound of the process, not damage.
_PILLOW_ERRORS: tuple[type[Exception], ...] = (
    OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, AssertionError,
    EOFError, RuntimeError, struct.error, zlib.error, Image.DecompressionBombError,
)  # fmt: skip
MAX_SIDE = 65_535  # pixels, as in JPEG and GIF: what resizing makes on its way is as high as the picture itself
MAX_DECODE_BYTES = 1 << 30  # of memory, while a picture is decoded
_MOST_PROFILES = 8  # a PNG has one, which may hold a megabyte packed into one kilobyte; pixels may look like its name
_PIXEL_BYTES = 4  # that Pillow keeps at most
_MOST_PIXELS = MAX_DECODE_BYTES // _PIXEL_BYTES  # of any picture, whatever the settings allow
Image.MAX_IMAGE_PIXELS = _MOST_PIXELS // 2  # Pillow refuses twice as many, where plugins would take memory at once
_WEBP_BYTES = 16  # for each pixel: libwebp's two canvases, the answer and Pillow's copy of it
_READS = 1 << 13  # of any file, 3 for each chunk of a PNG: those of 32 x 32 that check decoders have chunks of one byte
_BAND = 1 << 20  # pixels of a picture that are made RGB at once
_TURNED = 1 << 24  # pixels of a picture that is turned as a whole, which is faster: a telephone's photograph


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageHeader:
    """Sizes are those of the upright image, in pixels."""

    width: int
    height: int
    orientation: int  # EXIF, 1 to 8; 1: as stored

    @property
    def pixels(self) -> int:
        return self.width * self.height


def read_header(data: bytes, *, max_source_pixels: int) -> ImageHeader:
    """Size and orientation, without decoding a pixel. Raises ChatError, also when width x height is above the cap."""
    return _open(data, max_source_pixels)[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Decoded pixels as the file stores them: in the mode of the file, not yet upright."""

    image: Image.Image
    orientation: int = 1  # EXIF, 1 to 8
    on_white: bool = True  # where it is transparent, as in transformers' processors; else what is below shows

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) of the upright picture."""
        width, height = self.image.size
        return (height, width) if self.orientation >= 5 else (width, height)

    def resized(self, *, width: int, height: int, bilinear: bool = False) -> Image.Image:
        """Upright, as RGB, of that size: to the bit as if all of it were made upright and RGB first.

        Pillow makes a picture narrower row by row before anything else. So a band of rows is turned, made RGB (or grey)
        and made narrower before the next one, and no second copy of a large picture is ever made. Raises ChatError.
        """
        image = resize(self._narrowed(width, bilinear), width=width, height=height, bilinear=bilinear)
        return image if image.mode == "RGB" else image.convert("RGB")

    def _narrowed(self, width: int, bilinear: bool) -> Image.Image:
        """Upright, as RGB or grey, of its own height, and no wider than `width` unless nothing else is to be done."""
        mode, convert = _conversion(self.image, self.on_white)
        if convert is None and self.orientation == 1:
            return self.image
        width = min(width, self.size[0])  # one that is made wider may be made lower first
        image = None
        with _pillow(_DAMAGED):
            whole = convert is None and self.size[0] * self.size[1] <= _TURNED
            for top, band in self._bands(_TURNED if whole else _BAND):
                band = band if convert is None else convert(band)
                if band.height == self.size[1]:
                    return band
                image = image or Image.new(mode, (width, self.size[1]))
                image.paste(resize(band, width=width, height=band.height, bilinear=bilinear), (0, top))
        assert image is not None, "a picture has rows"
        return image

    def _bands(self, pixels: int) -> Iterator[tuple[int, Image.Image]]:
        """(first row, rows) of the upright picture, from top to bottom, still in the mode of the file."""
        width, height = self.size
        rows = max(1, pixels // width)
        for top in range(0, height, rows):
            box = stored_box((0, top, width, min(top + rows, height)), self.size, self.orientation)
            band = self.image if rows >= height else self.image.crop(box)
            yield top, band if self.orientation == 1 else band.transpose(TRANSPOSE[self.orientation])


def decode(data: bytes, *, max_source_pixels: int, on_white: bool = True, check: Check = go_on) -> Picture:
    """Decode the first frame, of the size in `read_header`. Raises ChatError, also for damaged data.

    `check` is called between blocks of the file.
    """
    image, header = _open(data, max_source_pixels, check)
    return _loaded(image, header, on_white)


def decode_rgb(data: bytes, *, max_source_pixels: int, on_white: bool = True, check: Check = go_on) -> Image.Image:
    """`decode`, upright, as RGB, of the size in `read_header`. Raises ChatError, also for damaged data."""
    image, header = _open(data, max_source_pixels, check)
    if image.mode != "RGB" or "transparency" in image.info or header.orientation != 1:
        _check_memory(image, 2 * _PIXEL_BYTES)  # a copy, beside what the file stores
    return _loaded(image, header, on_white).resized(width=header.width, height=header.height)


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


def cover(picture: Picture, *, edge: int, side: int) -> Image.Image:
    """The centre square of `side` pixels, once the shorter edge has `edge` of them; edge >= side. Raises ChatError."""
    width, height = picture.size
    if width <= height:
        image = picture.resized(width=edge, height=edge * height // width)
    else:
        image = picture.resized(width=edge * width // height, height=edge)
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


def _open(data: bytes, max_source_pixels: int, check: Check = go_on) -> tuple[Image.Image, ImageHeader]:
    # Pillow reads markers and fill bytes of a JPEG, chunks and blocks one by one.
    parts = _READS + len(data) // BYTES_OF_A_PART
    with _pillow(_NOT_AN_IMAGE, data):
        if data.count(b"iCCP") > _MOST_PROFILES:
            raise ChatError("the image has more than one colour profile")
        try:
            image = Image.open(CheckedFile(data, check, most=parts), formats=FORMATS)
        except Image.DecompressionBombError:
            most = min(max_source_pixels, _MOST_PIXELS)
            raise ChatError(f"the image has more than {_MOST_PIXELS} pixels, at most {most} are allowed") from None
        if image.format == "JPEG":  # a small file may hold many scans of a large picture
            image.decodermaxblock = _JPEG_BLOCK
        width, height = image.size
        try:
            orientation = orientation_of(image, data, parts)
        except _PILLOW_ERRORS:  # a damaged tag spoils no picture
            orientation = 1
    if width < 1 or height < 1:
        raise ChatError(_NOT_AN_IMAGE)
    if width * height > max_source_pixels:
        raise ChatError(
            f"the image has {width} x {height} = {width * height} pixels, at most {max_source_pixels} are allowed"
        )
    if max(width, height) > MAX_SIDE:
        raise ChatError(f"one side of the image has {max(width, height)} pixels, at most {MAX_SIDE} are allowed")
    per_pixel = _WEBP_BYTES if image.format == "WEBP" else _PIXEL_BYTES
    if image.format in ("JPEG", "MPO") and keeps_coefficients(data):
        per_pixel += 2 * len(image.getbands())  # coefficients, until the last scan
    _check_memory(image, per_pixel)
    if image.format in ("JPEG", "MPO") and cannot_hold(data, width * height):
        raise ChatError(f"the image is incomplete: {len(data)} bytes hold no JPEG of {width} x {height} pixels")
    if orientation >= 5:
        width, height = height, width
    return image, ImageHeader(width=width, height=height, orientation=orientation)


def _check_memory(image: Image.Image, per_pixel: int) -> None:
    """Raises ChatError where so many bytes for each pixel are more than a picture may take."""
    width, height = image.size
    if width * height * per_pixel > MAX_DECODE_BYTES:
        raise ChatError(
            f"decoding this image of {width} x {height} pixels takes {width * height * per_pixel >> 20} MiB "
            f"of memory, at most {MAX_DECODE_BYTES >> 20} are allowed"
        )


def _loaded(image: Image.Image, header: ImageHeader, on_white: bool) -> Picture:
    """Raises ChatError for damaged data."""
    stored = image.size
    with _pillow(_DAMAGED):
        image.load()
    if image.size != stored:
        raise ChatError(_DAMAGED)
    return Picture(image=image, orientation=header.orientation, on_white=on_white)


@contextmanager
def _pillow(message: str, sent: bytes = b"") -> Iterator[None]:
    """Pillow's many errors become one, without its text (which may hold addresses); its warnings are not ours.

    sent: a file that may be of another kind, which the message then names.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except ChatError:
            raise
        except _PILLOW_ERRORS:
            raise ChatError(message + meant_as(sent, "image")) from None


def _conversion(image: Image.Image, on_white: bool) -> tuple[str, Callable[[Image.Image], Image.Image] | None]:
    """The mode in which a picture is resized, grey where it has no colour, and what takes a part of it there."""
    keyed = image.info.get("transparency")
    if image.mode == "I;16":
        key = keyed if on_white and isinstance(keyed, int) else None
        return "L", lambda band: _high_bytes(band, key)
    if on_white and ("A" in image.getbands() or keyed is not None):
        return "RGB", _flattened
    if image.mode in ("L", "RGB"):
        return image.mode, None
    mode = "L" if image.mode == "1" else "RGB"
    return mode, lambda band: band.convert(mode)


def _flattened(band: Image.Image) -> Image.Image:
    """On white, as RGB."""
    band = band.convert("RGBA")
    if band.getchannel("A").getextrema() == (255, 255):
        return band.convert("RGB")
    white = Image.new("RGBA", band.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, band).convert("RGB")


def _high_bytes(band: Image.Image, key: int | None) -> Image.Image:
    """16-bit grey in 8 bits, `key` as white: Pillow's own conversion makes all above 255 white (docs/adr/0026)."""
    values = np.asarray(band)
    grey = (values >> 8).astype(np.uint8)
    if key is not None:
        grey[values == key] = 255
    return Image.fromarray(grey)
