"""The work of decoding, told from lengths: scans are counted as a decoder reads them, and few bytes hold few pixels."""

import io
import random
import re

import pytest
from PIL import Image

from configs.serve import MEGA, MediaConfig
from tests.samples.hostile_media import padded_jpeg
from tests.samples.pictures import encoded, photo
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media import effort
from tokenization.media.effort import (
    BMP,
    BMP_PACKED,
    CODE,
    FOUR_INKS,
    GIF,
    JPEG,
    MOST_SCANS,
    PROGRESSIVE,
    WEBP,
    allowed_effort,
    cannot_hold,
    check_effort,
    jpeg_weight,
    keeps_coefficients,
    picture_effort,
    video_effort,
    weight_of,
)
from tokenization.media.image import read_header
from tokenization.media.video_decoder import DECODERS


def jpeg(image: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, "JPEG", **options)
    return out.getvalue()


COLOUR, GREY = photo(70, 50), photo(70, 50).convert("L")
THUMBNAIL = Image.Exif()
THUMBNAIL[0x927C] = jpeg(COLOUR, progressive=True)  # a picture inside a segment: no scan of this one


@each_of(
    ("data", "scans"),
    [
        (jpeg(COLOUR), 1),
        (jpeg(GREY), 1),
        (jpeg(COLOUR.convert("CMYK")), 1),
        (jpeg(COLOUR, restart_marker_rows=1), 1),
        (jpeg(COLOUR, progressive=True), 10),  # libjpeg's own script
        (jpeg(GREY, progressive=True), 6),
        (jpeg(COLOUR, progressive=True, restart_marker_rows=1), 10),
        (jpeg(COLOUR, progressive=True, exif=THUMBNAIL.tobytes()), 10),
        (jpeg(COLOUR, progressive=True) + jpeg(COLOUR, progressive=True), 10),  # phones put more behind the end
        (padded_jpeg(64, 64, 1), 1),
        (padded_jpeg(64, 64, 300), 300),
        (padded_jpeg(64, 64, MOST_SCANS + 9), MOST_SCANS),
        (encoded(COLOUR, "PNG"), 1),
        (b"", 1),
        (b"\xff\xd8\xff", 1),
        (b"\xff\xd8" + b"\xff" * 100_000, 1),
    ],
)
def test_scans_are_counted(data: bytes, scans: int) -> None:
    assert jpeg_weight(data)[1] == scans


def test_the_scans_of_one_component_each_are_counted_without_progression() -> None:
    data = jpeg(COLOUR, progressive=True).replace(b"\xff\xc2", b"\xff\xc1", 1)
    assert jpeg_weight(data)[1] == 1, "the first of libjpeg's scans holds all three components"
    grey_first = bytearray(data)
    at = grey_first.index(b"\xff\xda")
    grey_first[at + 4] = 1
    assert jpeg_weight(bytes(grey_first))[1] == 10


def test_damage_costs_no_more_than_a_wrong_count() -> None:
    rng = random.Random(5)
    data = jpeg(COLOUR, progressive=True)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(6):
            broken[rng.randrange(len(broken))] = rng.choice([0xFF, 0xDA, 0xC2, 0, rng.randrange(256)])
        assert 1 <= jpeg_weight(bytes(broken[: rng.randrange(len(broken))]))[1] <= len(broken)
        cannot_hold(bytes(broken), 1 << 40)


def cut_up(part: bytes) -> bytes:
    """A megabyte of parts behind a JPEG's header. Pillow finds no length behind FF C8, and so a scan there."""
    data = jpeg(GREY)
    at = data.index(b"\xff\xda")
    head = data[:at] + b"\xff\xc8" + data[at:-2]
    return head + part * (((1 << 20) - len(head)) // len(part))


@each_of("part", [b"\xff\x02\0\0", b"\xff\xd8", b"\xff\x01", b"\xff\xe0\0\2"])
def test_a_jpeg_of_very_many_segments_is_looked_at_up_to_a_bound(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    class Counted:
        n = 0

        def search(self, data: bytes, at: int) -> re.Match[bytes] | None:
            self.n += 1
            return marker.search(data, at)

    data, marker, counted = cut_up(part), effort._MARKER, Counted()
    monkeypatch.setattr(effort, "_MARKER", counted)
    assert read_header(data, max_source_pixels=3500).pixels == 3500
    assert 1000 < counted.n <= 2048 + (1 << 20) // 128 == 10_240, "one pass"
    assert keeps_coefficients(data), "nothing tells"
    assert jpeg_weight(data)[1] == 1 and counted.n <= 4 * 10_240


def test_scans_behind_very_many_segments_count() -> None:
    data = padded_jpeg(64, 64, 300)
    second = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    assert jpeg_weight(data[:second] + b"\xff\xe0\0\2" * 5000 + data[second:])[1] == 300


def test_a_further_scan_counts_a_32nd() -> None:
    data = padded_jpeg(64, 64, 33)
    assert picture_effort(data, 3200) == 3200 + 32 * 3200 // 32 + round(2.6 * len(data))


PNGS = [("L", 0.7), ("I;16", 1.0), ("RGB", 1.3), ("P", 1.0), ("LA", 1.5), ("RGBA", 2.0), ("1", 0.7)]


@each_of(("mode", "weight"), PNGS)
def test_a_png_counts_by_what_it_holds(mode: str, weight: float) -> None:
    data = encoded(Image.new(mode, (8, 8)), "PNG")
    assert picture_effort(data, 10**6) == round(weight * 10**6 + 0.5 * len(data))
    if mode in ("L", "RGB", "P"):
        clear = encoded(Image.new(mode, (8, 8)), "PNG", transparency=(0, 0, 0) if mode == "RGB" else 0)
        assert weight_of(clear).pixel == (1.6 if mode == "P" else 2.0)


def test_other_pictures_count_by_their_format() -> None:
    assert jpeg_weight(jpeg(COLOUR))[0] == JPEG and jpeg_weight(jpeg(COLOUR, progressive=True))[0] == PROGRESSIVE
    assert jpeg_weight(jpeg(COLOUR.convert("CMYK")))[0] == FOUR_INKS
    formats = (("WEBP", WEBP), ("GIF", GIF), ("BMP", BMP))
    assert all(weight_of(encoded(COLOUR, name)) == weight for name, weight in formats)
    packed = bytearray(encoded(GREY, "BMP"))
    packed[30] = 1
    assert weight_of(bytes(packed)) == BMP_PACKED
    assert weight_of(b"").pixel == max(weight_of(b"").pixel, BMP.pixel, WEBP.pixel)


def test_a_video_counts_by_its_codec() -> None:
    """Every decoder that may run; one that is not named counts as what may be clear, and is not cheap."""
    counted = {codec: video_effort(codec, 1000, looked_at=2, decoded=40, nbytes=100) for codec in DECODERS.split(",")}
    assert counted["h264"] == 2 * 1000 + 40 * 250 + 18 * 100
    assert counted["ffv1"] == counted["gif"] == 2 * 1500 + 40 * 500 + 18 * 100
    assert min(counted.values()) >= 2 * 1000 + 40 * 50


def test_a_jpeg_that_holds_less_than_a_bit_a_block_is_incomplete() -> None:
    for flat in (Image.new("L", (2000, 2000)), Image.new("RGB", (2000, 2000)), Image.new("RGB", (16, 16))):
        for progressive in (False, True):
            data = jpeg(flat, progressive=progressive, optimize=True, quality=5, subsampling=2)
            assert not cannot_hold(data, flat.width * flat.height), len(data)
            read_header(data, max_source_pixels=1 << 40)
    data = padded_jpeg(65500, 2700)
    with pytest.raises(ChatError, match=f"incomplete: {len(data)} bytes hold no JPEG of 65500 x 2700") as caught:
        read_header(data, max_source_pixels=178_956_970)
    assert caught.value.param is None
    arithmetic = data.replace(b"\xff\xc2", b"\xff\xca", 1)  # its bits may stand for any number of blocks
    assert not cannot_hold(arithmetic, 65500 * 2700)


def test_a_request_s_media_share_what_their_bytes_allow() -> None:
    limits = MediaConfig(max_effort_pixels=100 * MEGA, free_effort_pixels=10 * MEGA)
    assert [allowed_effort(n, limits, films=0) for n in (0, 1000, 1 << 30)] == [10 * MEGA, 14_096_000, 100 * MEGA]
    assert allowed_effort(1000, limits, films=500) == 18_192_000
    check_effort(14_096_000, 1000, limits, films=0)
    with pytest.raises(ChatError) as caught:
        check_effort(14_096_001, 1000, limits, films=0)
    assert caught.value.message == (
        "decoding the media up to this one takes 15 megapixels of work, at most 14 are allowed for media of 1000 bytes"
    )
    assert caught.value.code == CODE == "media_too_costly"


@each_of(("nbytes", "megapixels"), [(104_927, 1165), (33_000, 453), (25_000, 519)])
def test_still_films_and_typed_text_pass(nbytes: int, megapixels: int) -> None:
    """A minute of black in full HD; what somebody types at a terminal, as GIFs of frames cut to what changed."""
    assert allowed_effort(nbytes, MediaConfig(), films=nbytes) > megapixels * MEGA
