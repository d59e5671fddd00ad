"""Tells in which order a decoder gives the frames of packets, from what the packets say and not from their times.

Most codecs give them as they lie in the file. Of MPEG's the headers of the pictures tell. Of the others times are
believed where they can be true.
"""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tokenization.media.containers.h264_order import PictureOrder
from tokenization.media.containers.mpeg4_headers import CodedVops

# Decoders that give frames in another order than that of their packets, by FFmpeg's names; no others do. Of MPEG's: the
# code that starts a picture, how many bytes behind it the type stands, its lowest bit, that of a B-picture, its mask.
_PICTURE = (b"\0\0\1\0", 5, 3, 3, 7)  # picture_coding_type (ISO/IEC 13818-2, 6.2.3)
_MPEG = {
    "mpeg4": (b"\0\0\1\xb6", 4, 6, 2, 3),  # vop_coding_type (ISO/IEC 14496-2, 6.2.5)
    "mpeg1video": _PICTURE,
    "mpeg2video": _PICTURE,
    "mpegvideo": _PICTURE,
}
_OTHERS = ("hevc", "vvc", "vc1", "wmv3", "rv20", "rv30", "rv40", "svq3")
_MOST_AHEAD = 16  # frames that a decoder of any codec keeps back


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FrameOrder:
    """Of all packets of a file."""

    packets: np.ndarray  # int64: those that begin a frame, as the decoder gives these
    counted: bool = False  # nothing tells: frame i is the i-th that the decoder gives
    timed: bool = False  # it is that of the packets' times, and these are not proved
    in_order: bool = False  # it is that of the packets
    paired: bool = False  # some packets hold only the second field of a frame


def frame_order(
    codec: str, extradata: bytes | None, packets: Iterable[bytes], pts: Sequence[int], *, timed: bool
) -> FrameOrder:
    """codec: FFmpeg's name of the decoder. pts: of each packet, or the best guess where they are not `timed`."""
    if codec in _MPEG:
        holds = CodedVops(extradata).holds if codec == "mpeg4" else bool
        of_frames = ((n, _is_b(packet, *_MPEG[codec])) for n, packet in enumerate(packets) if holds(packet))
        return FrameOrder(packets=_by_types(of_frames))
    if codec == "h264":
        return _by_counts(PictureOrder(extradata), packets, pts, timed)
    if codec in _OTHERS:
        return _by_times(np.arange(len(pts)), pts, timed)
    return FrameOrder(packets=np.arange(len(pts)))


def depth(order: np.ndarray) -> int:
    """How many packets at most lie before one, and come after it in that order."""
    return int((np.arange(len(order)) - np.argsort(order)).max(initial=0))


def possible(order: np.ndarray) -> bool:
    """Whether a decoder can give packets in that order."""
    return depth(order) <= _MOST_AHEAD


# ---- details


def _by_types(packets: Iterable[tuple[int, bool]]) -> np.ndarray:
    """packets: number, and whether it is a B-picture. Another one waits until the next of its kind is decoded."""
    order: list[int] = []
    waiting: int | None = None
    for number, alone in packets:
        if alone:
            order.append(number)
            continue
        if waiting is not None:
            order.append(waiting)
        waiting = number
    return np.array(order if waiting is None else [*order, waiting], np.int64)


def _is_b(packet: bytes, start: bytes, at: int, shift: int, kind: int, mask: int) -> bool:
    """Whether the first picture is one that no other waits for; see _MPEG."""
    found = packet.find(start) + at
    return at <= found < len(packet) and packet[found] >> shift & mask == kind


def _by_counts(pictures: PictureOrder, packets: Iterable[bytes], pts: Sequence[int], timed: bool) -> FrameOrder:
    """H.264 counts its pictures. Where that is not read of all of them, or cannot be true, times must agree with it."""
    known, first, keys = array("q"), array("q"), array("q")
    n = 0
    for n, packet in enumerate(packets, start=1):
        place = pictures.place(packet)
        if place is not None and place.second:
            continue
        first.append(n - 1)
        if place is not None:
            known.append(n - 1)
            keys.extend((place.period, place.order))
    begins, counted = np.array(first, np.int64), np.array(known, np.int64)
    if not len(counted):
        return _by_times(begins, pts, timed)
    periods, orders = np.array(keys, np.int64).reshape(-1, 2).T
    order, paired = counted[np.lexsort((orders, periods))], len(begins) < n
    if len(counted) == len(begins) and possible(order):
        return FrameOrder(packets=order, paired=paired)
    times = np.array(pts, np.int64)
    agreed = np.array_equal(counted[np.argsort(times[counted], kind="stable")], order)
    return FrameOrder(packets=begins[np.argsort(times[begins], kind="stable")], counted=not agreed, paired=paired)


def _by_times(first: np.ndarray, pts: Sequence[int], timed: bool) -> FrameOrder:
    order = first[np.argsort(np.array(pts, np.int64)[first], kind="stable")]
    in_order = np.array_equal(order, first)
    counted = not possible(order) or not (timed or in_order)
    return FrameOrder(
        packets=order, counted=counted, timed=True, in_order=in_order, paired=len(first) < len(pts)
    )  # fmt: skip
