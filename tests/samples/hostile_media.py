"""Media whose few bytes announce much work, and honest ones that are as flat: each as a file's bytes."""

import io
import re
import struct
import zlib

import av
import numpy as np
from PIL import ExifTags, Image

from tests.samples.pictures import png_chunk

# Of an interlaced PNG: its first column and row, and the steps to the next ones.
_PASSES = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


def gif_canvas(width: int, height: int, n: int) -> bytes:
    """An animation of `n` frames of one pixel on a large canvas: 22 bytes for each."""
    head = b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + b"\0\0\0\xff\xff\xff"
    frame = b"\x21\xf9\4\0\x32\0\0\0" + b",\0\0\0\0\1\0\1\0\0" + b"\2\2D\1\0"
    return head + frame * n + b";"


def padded_jpeg(width: int, height: int, scans: int = 1, nbytes: int = 0) -> bytes:
    """A progressive JPEG of one grey block for each of its scans, which decoders fill up to any size.

    nbytes: of the whole file; zeros in the last scan make it longer.
    """
    small = io.BytesIO()
    Image.new("L", (8, 8), 90).save(small, "JPEG", progressive=True)
    data = bytearray(small.getvalue())
    frame = data.index(b"\xff\xc2")
    struct.pack_into(">HH", data, frame + 5, height, width)
    starts = [match.start() for match in re.finditer(rb"\xff\xda", data)]
    head, first = bytes(data[: starts[0]]), bytes(data[starts[0] : starts[1]])
    second = bytes(data[starts[1] : starts[2] if len(starts) > 2 else len(data) - 2])
    body = head + first + second * (scans - 1)
    return body + bytes(max(0, nbytes - len(body) - 2)) + b"\xff\xd9"


def film_of(jpeg: bytes, container: str, *, width: int, height: int) -> bytes:
    """A film of one picture of that size, as it is."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        stream = output.add_stream("mjpeg", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuvj420p"
        packet = av.Packet(jpeg)
        packet.stream, packet.pts, packet.dts, packet.is_keyframe = stream, 0, 0, True
        output.mux(packet)
    return sink.getvalue()


def flat_png(width: int, height: int, *, bits: int = 8, colour: int = 0, level: int = 6) -> bytes:
    """All zero. colour: as in IHDR, 0 grey, 2 RGB, 4 grey and opacity, 6 RGBA."""
    n = {0: 1, 2: 3, 4: 2, 6: 4}[colour]
    row = bytes(1 + -(-width * n * bits // 8))
    packer = zlib.compressobj(level)
    packed = b"".join(packer.compress(row * min(256, height - top)) for top in range(0, height, 256)) + packer.flush()
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", packed) + png_chunk(b"IEND", b"")


def turned_png(width: int, height: int, nbytes: int = 0) -> bytes:
    """Row 13: one bit a pixel by a palette that is half clear, interlaced, turned by EXIF; all of one colour.

    nbytes: of the whole file, at least; a comment makes it longer.
    """
    packer = zlib.compressobj(9)
    packed = b""
    for left, top, right, down in _PASSES:
        columns, rows = -(-(width - left) // right), -(-(height - top) // down)
        packed += packer.compress(bytes(1 + -(-columns // 8)) * rows)
    turned = Image.Exif()
    turned[ExifTags.Base.Orientation] = 6
    chunks = {
        b"IHDR": struct.pack(">IIBBBBB", width, height, 1, 3, 0, 0, 1),
        b"PLTE": bytes(6),
        b"tRNS": b"\x80\x00",
        b"eXIf": turned.tobytes().removeprefix(b"Exif\0\0"),
        b"IDAT": packed + packer.flush(),
        b"IEND": b"",
    }
    size = sum(12 + len(content) for content in chunks.values()) + 8 + 12
    chunks[b"tEXt"] = b"a\0" + b"x" * max(0, nbytes - size - 2)
    chunks[b"IEND"] = chunks.pop(b"IEND")
    return b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(name, content) for name, content in chunks.items())


def flat_webp(width: int, height: int) -> bytes:
    """One colour, lossless."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (20, 90, 160)).save(out, "WEBP", lossless=True, method=0)
    return out.getvalue()


def scanned_page(width: int = 4960, height: int = 7016) -> bytes:
    """A page of A4 at 600 dpi with lines of letters, black and white, as a PNG of one bit a pixel."""
    page = np.full((height, width), 255, np.uint8)
    rng = np.random.default_rng(3)
    for top in range(height // 12, height - height // 12, 140):
        letters = rng.integers(0, 2, (10, width // 10)).astype(np.uint8).repeat(7, axis=0).repeat(8, axis=1)
        page[top : top + 70, width // 10 : width // 10 + letters.shape[1]] = 255 * letters
    out = io.BytesIO()
    Image.fromarray(page).convert("1", dither=Image.Dither.NONE).save(out, "PNG")
    return out.getvalue()


def black_clip(seconds: int, *, width: int = 1920, height: int = 1080, rate: int = 30) -> bytes:
    """H.264 in MP4, as encoders write it by default."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=rate, options={"preset": "ultrafast"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        black = av.VideoFrame.from_ndarray(np.zeros((height, width, 3), np.uint8), format="rgb24")
        frame = black.reformat(format="yuv420p")
        for number in range(seconds * rate):
            frame.pts = number
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return sink.getvalue()
