"""How much work it is to decode media, told by sizes and lengths before a pixel is made, and what their bytes may ask.

One unit: a pixel that is decoded, made RGB and resized (about 10 ns). What bytes may ask for grows with them; beside it
there is an allowance for what is honestly flat, whose bytes tell nothing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError

CODE = "media_too_costly"
PER_BYTE = 4096  # pixels of work that one byte may ask for: a still film of full HD holds some 3,500 for each
# Pixels that are passed over are cheap: a scan of a progressive JPEG, a frame of a video that nobody looks at.
PASSING = 32
# Of a JPEG: each block of 8 x 8 takes at least a bit of its first scan, whatever its picture.
_JPEG_PIXELS_PER_BYTE = 1024
_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])")  # what ends the data of a scan
MOST_SCANS = 4096
_EOI, _SOS = 0xD9, 0xDA
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # of these
_ARITHMETIC = frozenset(range(0xC9, 0xD0))  # those whose data have no least length
_MEGA = 10**6


@dataclass(slots=True, kw_only=True)
class EffortBudget:
    """What the media of one request have asked for so far; one object for each request."""

    nbytes: int  # of all of them, as encoded
    allowed: int
    spent: int = 0

    @classmethod
    def of(cls, nbytes: int, limits: MediaConfig) -> "EffortBudget":
        return cls(nbytes=nbytes, allowed=allowed_effort(nbytes, limits))

    def spend(self, effort: int, param: str) -> None:
        """Raises ChatError with `param` where it is too much."""
        self.spent += effort
        if self.spent > self.allowed:
            raise ChatError(
                f"decoding the media up to this one takes {-(-self.spent // _MEGA)} megapixels of work, at most "
                f"{self.allowed // _MEGA} are allowed for media of {self.nbytes} bytes",
                param,
                CODE,
            )


def allowed_effort(nbytes: int, limits: MediaConfig) -> int:
    """Pixels of work that media of so many bytes may ask for."""
    return min(limits.max_effort_pixels, limits.free_effort_pixels + PER_BYTE * nbytes)


def picture_effort(data: bytes, pixels: int) -> int:
    """Of an encoded picture with so many pixels."""
    return pixels + (jpeg_scans(data) - 1) * pixels // PASSING


def video_effort(pixels: int, *, looked_at: int, decoded: int) -> int:
    """Of a video whose frames have so many pixels."""
    return looked_at * pixels + decoded * pixels // PASSING


def jpeg_scans(data: bytes) -> int:
    """How often a decoder passes over the picture, counted to MOST_SCANS; 1 for what is no JPEG of several scans."""
    components, progressive, scans = 0, False, 0
    for kind, at in _segments(data):
        if kind in _FRAMES:
            components, progressive = data[at + 7] if at + 7 < len(data) else 0, kind & 3 == 2
        if kind != _SOS:
            continue
        # One scan with all components, sequential: the decoder reads it as it goes, and no further one.
        if not scans and not progressive and data[at + 2 : at + 3] == bytes([components]):
            return 1
        scans += 1
        if scans == MOST_SCANS:
            break
    return max(scans, 1)


def cannot_hold(data: bytes, pixels: int) -> bool:
    """Whether a JPEG is too short for its picture: decoders would make up what is missing."""
    if pixels <= _JPEG_PIXELS_PER_BYTE * len(data):
        return False
    frame = next((kind for kind, _ in _segments(data) if kind in _FRAMES), None)
    return frame not in _ARITHMETIC


# ---- details


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """(marker, where its length stands) for each segment of a JPEG, up to the end of its picture; of others none."""
    at = 2 if data.startswith(b"\xff\xd8") else len(data)
    # Between two segments decoders pass over anything that is no marker, as they do over the data of a scan.
    while (marker := _MARKER.search(data, at)) is not None:
        kind, at = marker[1][0], marker.end()
        if kind == _EOI:
            return
        if kind in (0x01, 0xD8):
            continue
        yield kind, at
        at += int.from_bytes(data[at : at + 2], "big")
