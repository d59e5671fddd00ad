"""Pictures are made upright, RGB and small in bands: to the bit as all at once, and without a second copy of them."""

import io
import subprocess
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.samples.hostile_media import flat_png
from tests.samples.pictures import bomb_webp, encoded, photo, png_chunk, with_alpha
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media.image import MAX_SIDE, decode, decode_rgb, read_header

CAP = 178_956_970
MIB = 1 << 20
SIZES = [(21, 17), (90, 61), (61, 140), (90, 17), (33, 61)]  # width, height; some leave a side as it is


def made(data: bytes, width: int, height: int, *, on_white: bool = True, bilinear: bool = False) -> Image.Image:
    picture = decode(data, max_source_pixels=CAP, on_white=on_white)
    return picture.resized(width=width, height=height, bilinear=bilinear)


def at_once(data: bytes, width: int, height: int, *, on_white: bool, bilinear: bool) -> Image.Image:
    """What Pillow gives for the whole picture made upright, RGB and resized one after the other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        image: Image.Image = ImageOps.exif_transpose(Image.open(io.BytesIO(data)))
        if on_white and ("A" in image.getbands() or "transparency" in image.info):
            image = image.convert("RGBA")
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        resample = Image.Resampling.BILINEAR if bilinear else Image.Resampling.BICUBIC
        return image.convert("RGB").resize((width, height), resample)


FILES = {
    "rgb": encoded(photo(90, 61), "PNG"),
    "rgb keyed": encoded(photo(90, 61), "PNG", transparency=photo(90, 61).getpixel((3, 3))),
    "rgba": encoded(with_alpha(90, 61), "PNG"),
    "rgba opaque": encoded(photo(90, 61).convert("RGBA"), "PNG"),
    "grey and opacity": encoded(with_alpha(90, 61).convert("LA"), "PNG"),
    "grey": encoded(photo(90, 61).convert("L"), "PNG"),
    "grey keyed": encoded(photo(90, 61).convert("L"), "PNG", transparency=photo(90, 61).convert("L").getpixel((3, 3))),
    "1 bit": encoded(photo(90, 61).convert("1"), "PNG"),
    "palette": encoded(photo(90, 61).convert("P"), "PNG"),
    "palette keyed": encoded(
        photo(90, 61).convert("P"), "GIF", transparency=photo(90, 61).convert("P").getpixel((3, 3))
    ),
    "cmyk": encoded(photo(90, 61).convert("CMYK"), "JPEG"),
    "turned": encoded(photo(90, 61), "JPEG", orientation=6),
    "turned grey": encoded(photo(90, 61).convert("L"), "JPEG", orientation=3),
    "turned rgba": encoded(with_alpha(90, 61), "PNG", orientation=8),
    **{f"orientation {n}": encoded(photo(90, 61), "PNG", orientation=n) for n in range(2, 9)},
}


@each_of("name", FILES)
@each_of("on_white", [True, False])
@each_of("bilinear", [False, True])
def test_bands_are_to_the_bit_what_the_whole_picture_gives(
    name: str, on_white: bool, bilinear: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for width, height in SIZES:
        expected = np.asarray(at_once(FILES[name], width, height, on_white=on_white, bilinear=bilinear))
        for pixels in (700, 1 << 24):  # seven rows, and eleven where it is turned; and all of them
            for size in ("_BAND", "_TURNED"):
                monkeypatch.setattr(f"tokenization.media.image.{size}", pixels)
            seen = np.asarray(made(FILES[name], width, height, on_white=on_white, bilinear=bilinear))
            assert np.array_equal(seen, expected), (width, height)


def grey16(values: np.ndarray, **keys: object) -> bytes:
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG", **keys)
    return out.getvalue()


def test_a_16_bit_grey_picture_is_scaled_as_16_bit_colours_are() -> None:
    """Pillow itself takes the high byte of 16-bit colours and of grey with opacity; of grey alone it clips."""
    ramp = np.linspace(0, 65535, 90 * 61).astype(np.uint16).reshape(61, 90)
    data = grey16(ramp)
    assert Image.open(io.BytesIO(data)).mode == "I;16"
    colour = ramp.astype(">u2")[..., None].repeat(3, axis=2)
    rows = b"".join(b"\0" + row.tobytes() for row in colour)
    header = data[:25] + b"\2" + data[26:29]  # IHDR with three components instead of one
    coloured = header[:8] + png_chunk(b"IHDR", header[16:29]) + png_chunk(b"IDAT", zlib.compress(rows)) + data[-12:]
    assert Image.open(io.BytesIO(coloured)).mode == "RGB"
    for size in SIZES:
        assert np.array_equal(np.asarray(made(data, *size)), np.asarray(made(coloured, *size)))
    seen = np.asarray(made(data, 90, 61))
    assert seen[0, 0].tolist() == [0, 0, 0] and seen[-1, -1].tolist() == [255, 255, 255]
    assert 0.4 < (seen < 128).mean() < 0.6, "clipped, all but the first row would be white"


def test_a_16_bit_grey_picture_may_have_a_transparent_level() -> None:
    values = np.full((61, 90), 20_000, np.uint16)
    values[10:20] = 300
    data = grey16(values, transparency=300)
    assert np.asarray(made(data, 90, 61))[15, 0].tolist() == [255] * 3
    assert np.asarray(made(data, 90, 61, on_white=False))[15, 0].tolist() == [1] * 3
    assert np.asarray(made(data, 90, 61))[0, 0].tolist() == [20_000 >> 8] * 3


def test_a_side_is_bounded_for_resizing_goes_over_rows_first() -> None:
    read_header(flat_png(1, MAX_SIDE), max_source_pixels=CAP)
    for size in ((1, MAX_SIDE + 1), (MAX_SIDE + 1, 1)):
        with pytest.raises(ChatError, match="65536 pixels, at most 65535") as caught:
            read_header(flat_png(*size), max_source_pixels=CAP)
        assert caught.value.param is None


@each_of(("form", "options", "each"), [("WEBP", {}, 16), ("JPEG", {"progressive": True}, 10), ("PNG", {}, 4)])
def test_the_memory_of_decoding_is_bounded_by_the_header(
    form: str, options: dict[str, object], each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = io.BytesIO()
    photo(64, 48).save(out, form, **options)
    monkeypatch.setattr("tokenization.media.image.MAX_DECODE_BYTES", 64 * 48 * each)
    read_header(out.getvalue(), max_source_pixels=CAP)
    monkeypatch.setattr("tokenization.media.image.MAX_DECODE_BYTES", 64 * 48 * each - 1)
    with pytest.raises(ChatError, match="decoding this image of 64 x 48 pixels takes 0 MiB of memory, at most 0"):
        read_header(out.getvalue(), max_source_pixels=CAP)


def test_the_coefficients_of_a_sequential_jpeg_count_where_its_first_scan_lacks_a_component(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libjpeg keeps them then, too: 6 bytes of each pixel more."""
    data = encoded(photo(64, 48), "JPEG")
    at = data.index(b"\xff\xda")
    grey = data[:at] + b"\xff\xda\0\x08\1" + data[at + 5 : at + 7] + b"\0\x3f\0" + data[at + 14 :]
    monkeypatch.setattr("tokenization.media.image.MAX_DECODE_BYTES", 64 * 48 * 10 - 1)
    read_header(data, max_source_pixels=CAP)
    with pytest.raises(ChatError, match="decoding this image of 64 x 48 pixels takes"):
        read_header(grey, max_source_pixels=CAP)


def test_a_whole_rgb_copy_counts_beside_what_the_file_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rgba", "rgb keyed", "grey", "cmyk", "turned"):
        monkeypatch.setattr("tokenization.media.image.MAX_DECODE_BYTES", 90 * 61 * 8)
        decode_rgb(FILES[name], max_source_pixels=CAP)
        monkeypatch.setattr("tokenization.media.image.MAX_DECODE_BYTES", 90 * 61 * 8 - 1)
        with pytest.raises(ChatError, match="decoding this image of .* pixels takes"):
            decode_rgb(FILES[name], max_source_pixels=CAP)
        made(FILES[name], 21, 17)
    decode_rgb(FILES["rgb"], max_source_pixels=CAP)


PEAK = """
import resource, sys
from pathlib import Path
from tokenization.media.image import decode
def made(path):
    picture = decode(Path(path).read_bytes(), max_source_pixels=1 << 40)
    return picture.resized(width=504, height=504)
made(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
made(sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


LARGE: dict[
    str, tuple[Callable[[int], bytes], int]
] = {  # a picture of so many pixels a side, and the bytes that decoding keeps of each pixel
    "rgba": (lambda side: flat_png(side, side, colour=6, level=1), 4),
    "grey": (lambda side: flat_png(side, side), 1),
    "16-bit grey": (lambda side: flat_png(side, side, bits=16), 2),
    "turned jpeg": (lambda side: encoded(Image.new("RGB", (side, side)), "JPEG", orientation=6), 4),
    "webp": (lambda side: bomb_webp(side, side), 16),
}


@pytest.mark.process
@each_of("what", LARGE)
def test_a_large_picture_lies_in_memory_once(tmp_path: Path, what: str) -> None:
    make, each = LARGE[what]
    side = 4200  # more than is turned at once
    small, large = tmp_path / "small", tmp_path / "large"
    small.write_bytes(make(1100))
    large.write_bytes(make(side))
    done = subprocess.run([sys.executable, "-c", PEAK, small, large], capture_output=True, text=True, check=True)
    assert int(done.stdout) << 10 < side * side * each + 24 * MIB
