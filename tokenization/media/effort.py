"""The cost of decoding media, estimated before a pixel is decoded, and how much of it their bytes may ask for.

The unit is 10 ns of a core: what one pixel of a photograph takes to be decoded, made RGB and resized. The allowed cost
grows with the bytes; a fixed allowance comes on top for honest flat pictures, which have few bytes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError

CODE = "media_too_costly"
SECONDS = 1e-8  # of a core for each unit, on the machine that the weights were measured on
PER_BYTE = 4096  # units of work that one byte may ask for
OF_FILMS = 8192  # and further ones for each of a video: a still film of full HD holds up to 11,100 for each
# Pixels that are passed over are cheap: a further scan of a progressive JPEG.
PASSING = 32
# Of a JPEG: each block of 8 x 8 takes at least a bit of its first scan, whatever its picture.
_JPEG_PIXELS_PER_BYTE = 1024
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # what ends the data of a scan
MOST_SCANS = 4096
_EOI, _SOS = 0xD9, 0xDA
_MORE = 0  # no marker: behind as many segments as are looked at
PARTS = 1 << 11  # of any JPEG that are looked at one by one: each takes a microsecond or two
BYTES_OF_A_PART = 128  # a further one for so many bytes; the chunks of a PNG's pixels have 8,192
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # of these
_ARITHMETIC = frozenset(range(0xC9, 0xD0))  # those whose data have no least length
_MEGA = 10**6


@dataclass(frozen=True, slots=True)
class Weight:
    """Units of work, by the worst file of a kind that was found (docs/log.md, 2026-11-23)."""

    pixel: float  # for each pixel that is decoded; of a picture also made upright, RGB and small
    byte: float = 0.5  # for each byte of what is decoded


JPEG, PROGRESSIVE, FOUR_INKS = Weight(1.0, 0.6), Weight(1.0, 2.6), Weight(1.5, 2.6)
# By colour type and whether samples have 16 bits. What is see-through is laid on white.
_PNG = {
    (0, False): Weight(0.7), (0, True): Weight(1.0), (2, False): Weight(1.3), (2, True): Weight(2.0),
    (3, False): Weight(1.0), (4, False): Weight(1.5), (4, True): Weight(2.0),
}  # fmt: skip
_PNG_CLEAR = {False: Weight(2.0), True: Weight(2.7)}
WEBP, GIF = Weight(2.0, 4.0), Weight(1.0)
BMP, BMP_PACKED = Weight(1.0), Weight(1.0, 26.0)
_OTHERS = Weight(2.7, 4.0)

LOOKED_AT, LOOKED_AT_CLEAR = 1.0, 1.5  # for each pixel of a frame that is made RGB and resized; where it may be clear
STUDIED = 20  # frames that FFmpeg decodes at most when a file is opened, to know their order
_LOSSY = Weight(0.125, 18.0)
VIDEO = {
    "h264": Weight(0.25, 18.0), "hevc": Weight(0.25, 25.0), "svq3": Weight(0.25, 18.0), "vc1": Weight(0.25, 18.0),
    "wmv3": Weight(0.25, 18.0), "libdav1d": Weight(0.05, 18.0), "av1": Weight(0.05, 18.0), "vvc": Weight(1.0, 25.0),
    **dict.fromkeys(
        ("vp8", "vp9", "mpeg1video", "mpeg2video", "mpegvideo", "mpeg4", "msmpeg4v1", "msmpeg4v2", "msmpeg4", "h261",
         "h263", "h263p", "flv", "vp6", "vp6f", "theora", "wmv1", "wmv2", "mjpeg", "rv10", "rv20", "rv30", "rv40",
         "svq1", "dvvideo", "cinepak"), _LOSSY,
    ),
}  # fmt: skip
_CLEAR = Weight(0.5, 18.0)  # of others, whose pixels may be clear


def check_effort(spent: int, nbytes: int, limits: MediaConfig, *, films: int) -> None:
    """Raises ChatError where media of so many bytes may not ask for it; films: those of videos among them."""
    allowed = allowed_effort(nbytes, limits, films=films)
    if spent > allowed:
        raise ChatError(
            f"decoding the media up to this one takes {-(-spent // _MEGA)} megapixels of work, at most "
            f"{allowed // _MEGA} are allowed for media of {nbytes} bytes",
            code=CODE,
        )


def allowed_effort(nbytes: int, limits: MediaConfig, *, films: int) -> int:
    """Pixels of work that media of so many bytes may ask for; films: those of videos among them."""
    return min(limits.max_effort_pixels, limits.free_effort_pixels + PER_BYTE * nbytes + OF_FILMS * films)


def picture_effort(data: bytes, pixels: int) -> int:
    """Of an encoded picture with so many pixels."""
    weight, scans = jpeg_weight(data) if data.startswith(b"\xff\xd8") else (weight_of(data), 1)
    return round(weight.pixel * pixels + weight.byte * len(data)) + (scans - 1) * pixels // PASSING


def video_effort(codec: str, pixels: int, *, looked_at: int, decoded: int, nbytes: int) -> int:
    """Of a video whose frames have so many pixels; nbytes: of the packets that are decoded."""
    weight = video_weight(codec)
    see = LOOKED_AT if codec in VIDEO else LOOKED_AT_CLEAR
    return round(see * looked_at * pixels + weight.pixel * decoded * pixels + weight.byte * nbytes)


def video_weight(codec: str) -> Weight:
    """Of a frame that is decoded, by FFmpeg's name of its decoder."""
    return VIDEO.get(codec, _CLEAR)


def weight_of(data: bytes) -> Weight:
    """Of an encoded picture that is no JPEG, by its first bytes."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        deep, colour = data[24:25] == b"\x10", data[25] if len(data) > 25 else 6
        clear = data.find(b"tRNS", 33, max(data.find(b"IDAT", 33), 33)) >= 0
        if clear and colour == 3:
            return Weight(1.6)
        return _PNG_CLEAR[deep] if clear else _PNG.get((colour, deep), _PNG_CLEAR[deep])
    if data[:4] == b"RIFF":
        return WEBP
    if data[:3] == b"GIF":
        return GIF
    if data[:2] == b"BM":
        return BMP_PACKED if data[30:34] in (b"\1\0\0\0", b"\2\0\0\0") else BMP
    return _OTHERS


def jpeg_weight(data: bytes) -> tuple[Weight, int]:
    """Of a JPEG, and how often a decoder passes over its picture, counted to MOST_SCANS; 1 where nothing tells."""
    weight, scans = None, 0
    most = MOST_SCANS if keeps_coefficients(data) else 1
    for kind, at in _segments(data):
        if kind in _FRAMES:
            components = data[at + 7] if at + 7 < len(data) else 0
            weight = weight or (FOUR_INKS if components == 4 else PROGRESSIVE if kind & 3 == 2 else JPEG)
        # Behind too many segments each that might be a scan counts.
        scans += data.count(bytes([0xFF, _SOS]), at) if kind == _MORE else kind == _SOS
        if scans >= most:
            break
    return weight or PROGRESSIVE, min(max(scans, 1), most)


def keeps_coefficients(data: bytes) -> bool:
    """Whether a decoder keeps those of a whole JPEG; one scan with all components, sequential, it reads as it goes."""
    components, progressive = 0, False  # of the frame before the first scan
    for kind, at in _segments(data):
        if kind in _FRAMES:
            components, progressive = data[at + 7] if at + 7 < len(data) else 0, kind & 3 == 2
        elif kind == _SOS:
            return progressive or data[at + 2 : at + 3] != bytes([components])
    return True


def cannot_hold(data: bytes, pixels: int) -> bool:
    """Whether a JPEG is too short for its picture: decoders would make up what is missing."""
    if pixels <= _JPEG_PIXELS_PER_BYTE * len(data):
        return False
    frame = next((kind for kind, _ in _segments(data) if kind in _FRAMES), None)
    return frame not in _ARITHMETIC


# ---- details


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, where its length stands) for each segment of a JPEG, up to the end of its picture; of others none.

    Of more than a picture's file may have the last is (_MORE, where the next one may begin).
    """
    at = 2 if data.startswith(b"\xff\xd8") else len(data)
    for _ in range(PARTS + len(data) // BYTES_OF_A_PART):
        # Between two segments decoders pass over anything that is no marker, as they do over the data of a scan.
        marker = _MARKER.search(data, at)
        if marker is None or marker[1][0] == _EOI:
            return
        kind, at = marker[1][0], marker.end()
        if kind in (0x01, 0xD8):
            continue
        yield kind, at
        at += int.from_bytes(data[at : at + 2], "big")
    yield _MORE, at
