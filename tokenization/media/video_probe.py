"""Reads a video's size, frames and timestamps from its packets and one decoded frame."""

from dataclasses import dataclass, replace

import numpy as np
from av.sidedata.sidedata import SideData
from av.video.frame import VideoFrame

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.frame_sampling import FPS
from tokenization.media.video_decoder import UNDECODABLE, PacketIndex, VideoReader, open_video

MAX_SOURCE_FRAMES = 432_000  # frames that a file may hold, looked at or not: two hours at 60 a second
_AV1 = ("libdav1d", "av1")
_MOST_FRAMES = 32  # of AV1 in one packet, those that are only referred to included: encoders write up to seven
_MOST_UNITS = 1 << 12
_MOST_BLOCKS = 1 << 16  # of one packet of a GIF, parts of blocks included: 16 MB of a comment
_MOST_SCANS = 64  # of a JPEG in one packet: each is passed over the whole picture, in one call; encoders write ten
_FIRST_TRIES = 4  # keys at which a first picture is looked for
# Signs of (a, b, c, d) in a display matrix -> how a frame becomes upright: flip left-right first? turn by how much?
_UPRIGHT = {
    (1, 0, 0, 1): (False, 0),
    (0, -1, 1, 0): (False, 90),
    (-1, 0, 0, -1): (False, 180),
    (0, 1, -1, 0): (False, 270),
    (-1, 0, 0, 1): (True, 0),
    (0, 1, 1, 0): (True, 90),
    (1, 0, 0, -1): (True, 180),
    (0, -1, -1, 0): (True, 270),
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VideoInfo:
    width: int  # of the upright frame, pixels
    height: int
    n_frames: int
    timestamps: np.ndarray  # float64 [n_frames], seconds since the first frame, ascending
    duration: float  # seconds, the last frame's own time included
    fps: float  # average
    rotation: int  # degrees counter-clockwise that make a stored frame upright: 0, 90, 180, 270
    mirrored: bool  # a stored frame is flipped left-right before it is turned
    index: PacketIndex
    reader: VideoReader  # of which this is known: it need not be opened again


def probe(data: bytes | memoryview, limits: MediaConfig, check: Check = go_on) -> VideoInfo:
    """Raises ChatError for what is no video, holds no frame that can be decoded, or is above the limits.

    `check` is called between packets.
    """
    reader = open_video(data, limits, check=check)
    index, seconds, duration, fps = _read_index(reader)
    if duration > limits.max_video_seconds:
        raise ChatError(f"the video lasts {duration:.0f} s, at most {limits.max_video_seconds:.0f} s are allowed")
    frame = _first_picture(reader, index, check)
    mirrored, rotation = _upright(frame)
    turned = rotation in (90, 270)
    return VideoInfo(
        width=frame.height if turned else frame.width,
        height=frame.width if turned else frame.height,
        n_frames=len(index.packets),
        timestamps=seconds,
        duration=duration,
        fps=fps,
        rotation=rotation,
        mirrored=mirrored,
        index=replace(index, interlaced=bool(frame.interlaced_frame)),
        reader=reader,
    )


def _read_index(video: VideoReader) -> tuple[PacketIndex, np.ndarray, float, float]:
    """The index, the seconds at which frames are shown (float64, from 0), the duration and the frames per second."""
    codec = video.stream.codec_context.name
    counted = video.container == "avi" and codec in ("h264", "hevc")  # their packets have no times, only places
    pts: list[int] = []
    lengths: list[int] = []  # how long each packet's frame is shown, 0 where the file does not say
    keys: list[int] = []
    shown: list[bool] = []
    for number, packet in enumerate(video.packets()):
        if number >= MAX_SOURCE_FRAMES:
            raise ChatError(f"the video has more than {MAX_SOURCE_FRAMES} frames")
        at = packet.pts if packet.pts is not None else packet.dts
        counted = counted or packet.pts is None
        pts.append(at if at is not None else (pts[-1] + 1 if pts else 0))
        lengths.append(packet.duration or 0)
        if packet.is_keyframe:
            keys.append(number)
        if codec in _AV1:
            _check_units(memoryview(packet))
        elif codec == "mjpeg" and bytes(packet).count(b"\xff\xda") > _MOST_SCANS:
            raise ChatError(f"a packet of the video holds more than {_MOST_SCANS} scans")
        # Cut off by an edit list; broken off by the end of the file; VP8's frames that are only referred to.
        hidden = (
            codec == "vp8" and not memoryview(packet)[0] & 0x10 or codec == "gif" and not _draws(memoryview(packet))
        )
        shown.append(not (packet.is_discard or packet.is_corrupt or hidden))
    order = np.argsort(np.array(pts, np.int64), kind="stable")
    packets = order[np.array(shown, bool)[order]]
    if not len(packets):
        raise ChatError(UNDECODABLE)
    times = np.array(pts, np.int64)[packets]
    unit = float(video.stream.time_base or 1)
    seconds = (times - times[0]) * unit
    duration, fps = _timing(seconds, lengths[packets[-1]] * unit, float(video.stream.average_rate or 0))
    starts = keys or [0]
    index = PacketIndex(
        packets=packets,
        keys=tuple(starts),
        key_frames=tuple(np.searchsorted(times, [pts[key] for key in starts]).tolist()),
        n_packets=len(pts),
        counted=counted,
    )
    return index, seconds, duration, fps


def _check_units(packet: memoryview) -> None:
    """Raises ChatError for a packet of AV1 with many frames: a decoder gives all at once, and they are not counted.

    The units are those of the specification's section 5.3 (open_bitstream_unit).
    """
    at = frames = 0
    for _ in range(_MOST_UNITS):
        if at >= len(packet) or frames > _MOST_FRAMES:
            break
        head, size = packet[at], 0
        at += 1 + (head >> 2 & 1)
        if not head & 2:  # it has no size, and is the last one
            return
        frames += head >> 3 & 15 in (3, 6)
        for i, seven in enumerate(packet[at : at + 8]):
            size |= (seven & 0x7F) << 7 * i
            at += 1
            if seven < 0x80:
                break
        at += size
    else:
        frames = _MOST_FRAMES + 1
    if frames > _MOST_FRAMES:
        raise ChatError(f"a packet of the video holds more than {_MOST_FRAMES} frames")


def _draws(packet: memoryview) -> bool:
    """Whether a packet of a GIF holds a picture: blocks behind the last one are a packet of their own.

    The blocks are those of GIF89a's appendix B. Behind very many there may be a picture.
    """
    at, inside = 0, False  # inside: among the parts of an extension
    if len(packet) > 13 and bytes(packet[:4]) == b"GIF8":
        at = 13 + (3 << (packet[10] & 7) + 1 if packet[10] & 0x80 else 0)
    for _ in range(_MOST_BLOCKS):
        if at >= len(packet):
            return False
        kind = packet[at]
        if inside:
            at += 1 + kind
            inside = kind > 0
        elif kind in (0x2C, 0x3B):  # a picture; the end
            return kind == 0x2C
        else:
            inside = kind == 0x21
            at += 2 if inside else 1
    return True


def _timing(seconds: np.ndarray, last: float, rate: float) -> tuple[float, float]:
    """(duration, frames per second). The file's rate is taken where it fits: times in milliseconds do not give it."""
    n = len(seconds)
    duration = float(seconds[-1]) + (last or float(seconds[-1]) / max(n - 1, 1))
    if rate > 0 and abs(rate * duration - n) <= 0.5:
        return duration, rate
    if duration > 0:
        return duration, n / duration
    return n / (rate or FPS), rate or FPS


def _first_picture(video: VideoReader, index: PacketIndex, check: Check) -> VideoFrame:
    """Of the first packet, or a key, and not of the frame that is shown first: all packets may come before that one.

    Any frame tells what is asked for here. Nothing has been counted yet.
    """
    for start in dict.fromkeys((0, *index.keys[:_FIRST_TRIES])):
        for n in (1, 2):  # a second field may be needed
            video.restart(check)
            for frame in video.alone(start, n):
                return frame
    raise ChatError(UNDECODABLE)


def _upright(frame: VideoFrame) -> tuple[bool, int]:
    """(flip left-right first, then turn by so many degrees) as the frame's display matrix says; else nothing."""
    item = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(item, SideData):
        return False, 0
    # Nine int32 (a b u, c d v, x y w): a point (p, q) is shown at (a p + c q, b p + d q).
    a, b, _, c, d = np.frombuffer(bytes(item), np.int32, count=5).tolist()
    most = max(abs(a), abs(b), abs(c), abs(d), 1)
    # Sides that are less than half of the greatest are what is left of a turn that is not quite a quarter.
    sa, sb, sc, sd = (0 if 2 * abs(x) < most else (1 if x > 0 else -1) for x in (a, b, c, d))
    return _UPRIGHT.get((sa, sb, sc, sd), (False, 0))
