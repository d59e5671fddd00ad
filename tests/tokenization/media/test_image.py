"""Images: what the header tells, what decoding gives, and what hostile bytes do not achieve."""

import io
import random
import re
import resource
import struct
import time
import warnings
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.samples.pictures import (
    bomb_bmp,
    bomb_gif,
    bomb_png,
    bomb_webp,
    encoded,
    photo,
    png_chunk,
    with_alpha,
)
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media.image import decode_rgb, read_header, resize, to_patches

CAP = 178_956_970


def header(data: bytes, cap: int = CAP) -> tuple[int, int, int]:
    found = read_header(data, max_source_pixels=cap)
    return found.width, found.height, found.orientation


def pixels(data: bytes) -> np.ndarray:
    return np.asarray(decode_rgb(data, max_source_pixels=CAP))


def refused(data: bytes, cap: int = CAP) -> str:
    with pytest.raises(ChatError) as caught:
        decode_rgb(data, max_source_pixels=cap)
    assert caught.value.param is None
    return caught.value.message


@each_of("form", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_five_formats_by_content(form: str) -> None:
    data = encoded(photo(40, 30), form)
    assert header(data) == (40, 30, 1)
    assert np.array_equal(pixels(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@each_of("form", ["TIFF", "JPEG2000", "PPM", "ICO", "TGA", "PDF"])
def test_other_formats_are_refused_also_under_a_known_name(form: str) -> None:
    buffer = io.BytesIO()
    photo(40, 30).save(buffer, form)
    assert "JPEG, PNG, WebP, GIF, BMP" in refused(buffer.getvalue())


def test_the_first_frame_of_an_animation() -> None:
    for form in ("GIF", "WEBP", "PNG"):
        buffer = io.BytesIO()
        photo(20, 20, 1).convert("P").save(buffer, form, save_all=True, append_images=[photo(20, 20, 2).convert("P")])
        first = Image.open(io.BytesIO(buffer.getvalue()))
        assert getattr(first, "n_frames", 1) == 2
        assert np.array_equal(pixels(buffer.getvalue()), np.asarray(first.convert("RGB")))


@each_of("orientation", range(1, 9))
@each_of("form", ["JPEG", "PNG", "WEBP"])
def test_exif_orientation_is_known_from_the_header_and_applied(form: str, orientation: int) -> None:
    data = encoded(photo(40, 30), form, orientation=orientation)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert header(data) == ((30, 40) if orientation >= 5 else (40, 30)) + (orientation,)
    assert np.array_equal(pixels(data), upright)


def test_png_orientation_behind_the_pixels() -> None:
    plain = encoded(photo(40, 30), "PNG")
    exif = Image.Exif()
    exif[0x0112] = 6
    late = plain[:-12] + png_chunk(b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")) + plain[-12:]
    assert header(late) == (30, 40, 6)
    assert np.array_equal(
        pixels(late), np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(late))).convert("RGB"))
    )


@each_of("tag", [b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0MM\0*\0\0\0\x08\xff\xff" + b"\1" * 40])
def test_a_damaged_exif_tag_spoils_no_picture(tag: bytes) -> None:
    buffer = io.BytesIO()
    photo(40, 30).save(buffer, "JPEG", exif=tag)
    assert header(buffer.getvalue()) == (40, 30, 1)
    assert pixels(buffer.getvalue()).shape == (30, 40, 3)


def test_transparency_lies_on_white() -> None:
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    image.putpixel((1, 2), (10, 20, 30, 255))
    seen = pixels(encoded(image, "PNG"))
    assert seen[0, 0].tolist() == [255, 255, 255] and seen[2, 1].tolist() == [10, 20, 30]
    assert pixels(encoded(with_alpha(32, 32), "WEBP")).shape == (32, 32, 3)


@each_of("mode", ["RGBA", "LA", "P"])
def test_transparency_is_forgotten_where_a_model_was_made_so(mode: str) -> None:
    image = Image.new("RGBA", (4, 4), (200, 0, 0, 0))
    if mode != "RGBA":
        image = image.convert(mode)
    data = encoded(image, "PNG")
    seen = np.asarray(decode_rgb(data, max_source_pixels=CAP, on_white=False))
    with Image.open(io.BytesIO(data)) as plain, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's, of palettes; ours must not give it
        assert (seen == np.asarray(plain.convert("RGB"))).all()
    assert (seen[0, 0] != 255).any()


@pytest.mark.parametrize("cap, fits", [(1200, True), (1199, False)])
def test_the_pixel_cap_is_exact(cap: int, fits: bool) -> None:
    data = encoded(photo(40, 30), "PNG")
    if fits:
        assert header(data, cap) == (40, 30, 1)
    else:
        assert "40 x 30 = 1200" in refused(data, cap) and "1199" in refused(data, cap)


@each_of(
    "make, size",
    [(bomb_png, 30_000), (bomb_gif, 30_000), (bomb_bmp, 30_000), (bomb_webp, 16_384)],
)
@each_of("cap", [CAP, 10**7])
def test_a_bomb_is_refused_from_its_header(make: Callable[[int, int], bytes], size: int, cap: int) -> None:
    data = make(size, size)
    refused(make(100, 100), 1)  # whatever is loaded at first use is loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.process_time()
    assert f"pixels, at most {cap} are allowed" in refused(data, cap)
    assert time.process_time() - start < 0.5
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB


def test_the_pixel_cap_is_ours_and_not_pillow_s() -> None:
    data = bomb_png(20_000, 10_000)
    assert refused(data) == f"the image has 20000 x 10000 = 200000000 pixels, at most {CAP} are allowed"
    assert header(data, 200_000_000) == (20_000, 10_000, 1)
    assert header(bomb_png(16_384, 16_384), 1 << 32) == (16_384, 16_384, 1)
    assert refused(bomb_png(16_384, 16_385), 1 << 32) == (
        "the image has more than 268435456 pixels, at most 268435456 are allowed"
    )


def test_bombs_below_pillow_s_own_warning_limit_are_quiet() -> None:
    assert header(bomb_png(10_000, 10_000))[:2] == (10_000, 10_000)  # Pillow warns from 89 million pixels on


def hostile() -> list[bytes]:
    """Damaged files of every format: cut, flipped, overwritten."""
    rng = random.Random(0)
    cases = [b"", b"\0", b"GIF89a", b"RIFF\0\0\0\0WEBP", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"BM", bytes(1000)]
    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP"):
        for image in (photo(37, 23), photo(37, 23).convert("L"), with_alpha(37, 23).convert("P")):
            data = encoded(image.convert("RGB") if form == "JPEG" else image, form)
            cases += [data[: len(data) * i // 8] for i in range(8)]
            for _ in range(40):
                damaged = bytearray(data)
                for _ in range(rng.choice([1, 1, 4, 16])):
                    at = rng.randrange(min(len(damaged), rng.choice([64, 4096])))
                    damaged[at] = rng.randrange(256)
                cases.append(bytes(damaged))
            at = rng.randrange(8, 40)
            cases.append(data[:at] + b"\xff" * 8 + data[at + 8 :])
    return cases


def test_damaged_files_are_read_or_refused_cleanly() -> None:
    outcomes = {"read": 0, "refused": 0}
    for data in hostile():
        try:
            found = read_header(data, max_source_pixels=10**7)
            image = decode_rgb(data, max_source_pixels=10**7)
            assert image.mode == "RGB" and image.size == (found.width, found.height)
            outcomes["read"] += 1
        except ChatError as error:
            assert error.param is None
            assert not re.search(r"0x[0-9a-f]{4}|/|BytesIO|Traceback", error.message)
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 50


def test_a_png_text_bomb_is_refused() -> None:
    data = encoded(photo(8, 8), "PNG")
    packed = zlib.compress(bytes(100_000_000), 9)
    bomb = data[:33] + png_chunk(b"zTXt", b"Comment\0\0" + packed) + data[33:]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000


PNG, JPEG, GIF = encoded(photo(64, 64), "PNG"), encoded(photo(64, 64), "JPEG"), encoded(photo(64, 64), "GIF")
AFTER_PALETTE = 13 + (3 << (GIF[10] & 7) + 1)


@each_of(
    "data",
    [
        JPEG[:2] + b"\xff" * (1 << 20) + JPEG[2:],
        JPEG[:2] + b"\xff\xfe\0\2" * (1 << 18) + JPEG[2:],
        PNG[:33] + png_chunk(b"abCd", b"") * 90_000 + PNG[33:],
        PNG[:-12] + png_chunk(b"IDAT", b"") * 90_000 + PNG[-12:],
        PNG[:-12] + png_chunk(b"abCd", b"") * 90_000 + PNG[-12:],
        GIF[:AFTER_PALETTE] + b"\x21\xfe" + b"\x01a" * (1 << 19) + b"\0" + GIF[AFTER_PALETTE:],
        GIF[:AFTER_PALETTE] + b"\x21\xfe\0" * (1 << 18) + GIF[AFTER_PALETTE:],
        GIF[:AFTER_PALETTE] + bytes(1 << 20) + GIF[AFTER_PALETTE:],
    ],
    ids=["fill", "comments", "chunks before", "pixels", "chunks behind", "blocks", "extensions", "zeros"],
)
def test_a_header_in_many_parts_is_refused_early(data: bytes) -> None:
    """Pillow reads them one by one: a megabyte of them took up to 1.5 s."""
    begun = time.process_time()
    assert refused(data) == "the file is cut into more parts than its bytes need"
    assert time.process_time() - begun < 0.3


def test_a_small_png_may_have_pixels_in_chunks_of_one_byte() -> None:
    """PngSuite's oi9n0g16 and oi9n2c16, of 32 x 32, which check decoders, are written so."""
    plain = encoded(photo(32, 32), "PNG")
    at = plain.index(b"IDAT")
    (length,) = struct.unpack_from(">I", plain, at - 4)
    packed = plain[at + 4 : at + 4 + length]
    assert len(packed) > 2000 and plain.count(b"IDAT") == 1
    cut = b"".join(png_chunk(b"IDAT", packed[i : i + 1]) for i in range(length))
    assert np.array_equal(pixels(plain[: at - 4] + cut + plain[at + 8 + length :]), pixels(plain))


def test_a_png_has_one_colour_profile() -> None:
    profile = png_chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1 << 20), 9))
    assert pixels(PNG[:33] + profile + PNG[33:]).shape == (64, 64, 3)
    assert refused(PNG[:33] + profile * 1000 + PNG[33:]) == "the image has more than one colour profile"


def test_a_wide_bmp_of_negative_height_and_a_huge_one() -> None:
    data = encoded(photo(10, 6), "BMP")
    upside = data[:22] + struct.pack("<i", -6) + data[26:]
    assert np.array_equal(pixels(upside), pixels(data)[::-1])
    refused(data[:18] + struct.pack("<ii", -10, 6) + data[26:])


def test_resizing_to_the_same_size_changes_nothing() -> None:
    image = photo(56, 28)
    assert resize(image, width=56, height=28) is image
    assert resize(image, width=28, height=56).size == (28, 56)


def test_patches_are_in_merge_block_order() -> None:
    # 2 x 3 blocks of 2 x 2 patches of 2 x 2 pixels; every pixel says where it stands, every channel who it is
    rows, columns = np.mgrid[0:8, 0:12]
    image = np.stack([rows * 12 + columns, 100 + rows, 200 + columns], axis=-1).astype(np.uint8)
    patches = to_patches(Image.fromarray(image), patch=2, merge=2)
    assert patches.shape == (24, 12) and patches.dtype == np.uint8 and patches.flags.c_contiguous
    corners = [divmod(int(patch[0]), 12) for patch in patches]
    blocks = [(r, c) for r in (0, 4) for c in (0, 4, 8)]
    assert corners == [(r + dr, c + dc) for r, c in blocks for dr in (0, 2) for dc in (0, 2)]
    assert patches[0].tolist() == [0, 1, 12, 13, 100, 100, 101, 101, 200, 201, 200, 201]
    assert patches[3].tolist() == [26, 27, 38, 39, 102, 102, 103, 103, 202, 203, 202, 203]


@each_of("size", [(1, 1), (1, 40), (40, 1), (2, 2), (3, 3)])
@each_of("form", ["PNG", "WEBP", "GIF", "BMP", "JPEG"])
def test_tiny_images(size: tuple[int, int], form: str) -> None:
    data = encoded(photo(*size), form)
    assert header(data)[:2] == size
    assert pixels(data).shape == (size[1], size[0], 3)
