"""Run-length BMPs: Pillow's own decoder says which pixels they hold, and its cost is not ours."""

import io
import random
import struct
import time
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import BmpImagePlugin, Image

from tests.samples.pictures import photo
from tests.tables import each_of
from tokenization.cancel import Cancelled
from tokenization.media.image import decode

END_OF_ROW = b"\0\0"


def bmp(width: int, height: int, codes: bytes, bits: int, *, odd: int = 0) -> bytes:
    """odd: bytes between the palette and the codes, which are aligned by their place in the file."""
    palette = b"".join(bytes((i * 7 & 255, i * 13 & 255, i * 29 & 255, 0)) for i in range(1 << bits))
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, bits, 1 if bits == 8 else 2, len(codes), 0, 0, 0, 0)
    start = 54 + len(palette) + odd
    return b"BM" + struct.pack("<IHHI", start + len(codes), 0, 0, start) + info + palette + bytes(odd) + codes


def packed(rows: np.ndarray, bits: int) -> bytes:
    """uint8 [height, width] as runs of what is equal, each row with its end."""
    out = bytearray()
    for row in rows[::-1].tolist():
        at = 0
        while at < len(row):
            n = next((i for i in range(1, min(255, len(row) - at)) if row[at + i] != row[at]), min(255, len(row) - at))
            out += bytes((n, row[at] if bits == 8 else row[at] << 4 | row[at]))
            at += n
        out += END_OF_ROW
    return bytes(out) + b"\0\1"


def by_pillow(data: bytes) -> tuple[object, ...]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(Image.DECODERS, "bmp_rle", BmpImagePlugin.BmpRleDecoder)
        return read(data)


def read(data: bytes) -> tuple[object, ...]:
    image = Image.open(io.BytesIO(data))
    try:
        image.load()
    except ValueError as error:
        return (str(error),)
    return image.mode, image.size, image.tobytes()


@each_of("bits", [8, 4])
@each_of("side", [64, 160])
def test_pictures_of_many_runs_are_read(bits: int, side: int) -> None:
    levels = np.asarray(photo(side, side).convert("L")) >> 8 - bits
    data = bmp(side, side, packed(levels, bits), bits)
    right = by_pillow(data)
    assert len(data) > 2048 and right[1] == (side, side)
    decoded = decode(data, max_source_pixels=side * side).image
    assert (decoded.mode, decoded.size, decoded.tobytes()) == right


def codes(rng: random.Random, bits: int) -> Iterator[bytes]:
    """Of every kind, also across the end of a row, behind the last one, not aligned, and cut."""
    for _ in range(rng.choice([3, 30, 300])):
        kind, longest = rng.random(), rng.choice([6, 20, 256])
        if kind < 0.5:
            yield bytes((rng.randrange(1, longest), rng.randrange(256)))
        elif kind < 0.6:
            yield END_OF_ROW
        elif kind < 0.64:
            yield b"\0\2" + bytes(rng.choice([0, 1, rng.randrange(256)]) for _ in range(2))
        elif kind < 0.65:
            yield b"\0\1"
        elif kind < 0.95:
            n = rng.randrange(3, longest)
            held = n if bits == 8 else (n + 1) // 2
            yield bytes((0, n)) + rng.randbytes(held + (held & 1 if rng.random() < 0.9 else 0))
        else:
            yield rng.randbytes(rng.randrange(9))


def test_any_codes_give_what_they_give_in_pillow() -> None:
    rng = random.Random(1)
    whole = 0
    for _ in range(400):
        bits, odd = rng.choice([4, 8]), rng.randrange(2)
        width, height = rng.choice([1, 2, 3, 7, 16, 64, 300]), rng.choice([1, 2, 5, 40])
        body = b"".join(codes(rng, bits))
        body = body * 300 if rng.random() < 0.1 else body  # longer than what is read at once
        if rng.random() < 0.7:
            body += b"\xff\x15\0\0" * (width * height // 255 + height)
        data = bmp(width, height, body, bits, odd=odd)
        right = by_pillow(data)
        assert read(data) == right
        whole += len(right) == 3
    assert 100 < whole < 390


ATTACKS = {
    "rows of one pixel": bmp(16_384, 2000, b"\1\5\0\0" * 2000, 8),
    "runs of RLE4": bmp(4000, 4000, (b"\xff\x15" * 16 + END_OF_ROW) * 4000, 4),
    "steps": bmp(1000, 1000, b"\0\2\0\0" * 65_000 + b"\0\2\xff\xff" * 20, 8),
    "runs that are cut": bmp(2, 2, b"\xff\x15" * 100_000 + (END_OF_ROW + b"\xff\1") * 2, 4),
    "ends": bmp(1000, 2, END_OF_ROW * 100_000, 8),
}


@each_of("data", list(ATTACKS.values()), ids=list(ATTACKS))
def test_what_costs_pillow_seconds_is_bounded_by_bytes_and_pixels(data: bytes) -> None:
    """Pillow takes 41 ns and more for each pixel of rows that an end of line fills and of RLE4: 3 s for the first."""
    begun = time.process_time()
    outcome = read(data)
    assert time.process_time() - begun < 1.5
    assert outcome[0] in ("P", "not enough image data")


def test_a_client_that_leaves_is_noticed_between_blocks() -> None:
    data = bmp(1000, 1000, (b"\1\5" * 1000 + END_OF_ROW) * 1000, 8)
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise Cancelled

    with pytest.raises(Cancelled):
        decode(data, max_source_pixels=10**6, check=check)
    assert calls == 9 < len(data) >> 16
