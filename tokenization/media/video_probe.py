"""Reads a video's size, frames and timestamps from its packets and one decoded frame."""

from dataclasses import dataclass, replace

import numpy as np
from av.sidedata.sidedata import SideData
from av.video.frame import VideoFrame

from configs.serve import MediaConfig
from tokenization.cancel import Check, go_on
from tokenization.chat.errors import ChatError
from tokenization.media.containers.frame_order import FrameOrder, depth, frame_order, possible
from tokenization.media.frame_sampling import FPS
from tokenization.media.video_decoder import UNDECODABLE, PacketIndex, VideoReader, open_video

MAX_SOURCE_FRAMES = 432_000  # frames that a file may hold, looked at or not: two hours at 60 a second
_AV1 = ("libdav1d", "av1")
_MOST_FRAMES = 32  # of AV1 in one packet, those that are only referred to included: encoders write up to seven
_MOST_UNITS = 1 << 12
_MOST_BLOCKS = 1 << 16  # of one packet of a GIF, parts of blocks included: 16 MB of a comment
_MOST_SCANS = 64  # of a JPEG in one packet: each is passed over the whole picture, in one call; encoders write ten
_LATEST = (1 << 63) - 1  # ticks: what a container can say
_MOST_HEAD = 64  # packets of full HD that are decoded to know where the frames begin
_FULL_HD = 1920 * 1080  # pixels
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
    packets = _read_packets(reader)
    extradata = reader.stream.codec_context.extradata
    order = frame_order(reader.codec, extradata, map(bytes, reader.packets()), packets.pts, timed=packets.timed)
    index, seconds, duration, fps = _index(reader, packets, order)
    reader.expect(index.depth)
    if duration > limits.max_video_seconds:
        raise ChatError(f"the video lasts {duration:.0f} s, at most {limits.max_video_seconds:.0f} s are allowed")
    frame = _first_picture(reader, index, check)
    key = packets.keys[0] if packets.keys else 0
    whole = _with_head(reader, key, order, frame.width * frame.height, check)
    if whole is not order:
        index, seconds, duration, fps = _index(reader, packets, whole)
    mirrored, rotation = _upright(frame)
    turned = rotation in (90, 270)
    # Times that are those of decoding, and a decoder that gives frames in another order; or the other way round.
    untrue = order.timed and order.in_order == bool(reader.stream.codec_context.has_b_frames)
    return VideoInfo(
        width=frame.height if turned else frame.width,
        height=frame.width if turned else frame.height,
        n_frames=len(index.packets),
        timestamps=seconds,
        duration=duration,
        fps=fps,
        rotation=rotation,
        mirrored=mirrored,
        index=replace(index, interlaced=bool(frame.interlaced_frame), counted=index.counted or untrue),
        reader=reader,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Packets:
    """What all packets of a file say, each list as long as there are packets."""

    pts: list[int]  # when the frame of each is shown, or the best guess
    lengths: list[int]  # how long it is shown, 0 where the file does not say
    keys: list[int]  # the packets at which decoding can start
    shown: list[bool]
    timed: bool  # each says when


def _read_packets(video: VideoReader) -> _Packets:
    """Of all that hold something. Raises ChatError for too many, or too much in one."""
    codec = video.codec
    found = _Packets(pts=[], lengths=[], keys=[], shown=[], timed=True)
    pts, timed, broken = found.pts, True, False
    for number, packet in enumerate(video.packets()):
        if number >= MAX_SOURCE_FRAMES:
            raise ChatError(f"the video has more than {MAX_SOURCE_FRAMES} frames")
        at = packet.pts if packet.pts is not None else packet.dts
        timed = timed and packet.pts is not None
        pts.append(at if at is not None else (min(pts[-1] + max(found.lengths[-1], 1), _LATEST) if pts else 0))
        found.lengths.append(packet.duration or 0)
        if packet.is_keyframe:
            found.keys.append(number)
        given = True
        if codec in _AV1:
            given = _shows(memoryview(packet)) or packet.is_keyframe
        elif codec == "mjpeg" and bytes(packet).count(b"\xff\xda") > _MOST_SCANS:
            raise ChatError(f"a packet of the video holds more than {_MOST_SCANS} scans")
        elif codec == "vp8":
            given = bool(memoryview(packet)[0] & 0x10)  # show_frame (RFC 6386, 9.1)
        elif codec == "vp9":
            given = _vp9_shows(memoryview(packet))
        elif codec == "gif":
            given = _draws(memoryview(packet))
        # Cut off by an edit list; frames that are only referred to.
        found.shown.append(given and not packet.is_discard)
        broken = packet.is_corrupt
    if broken:  # by the end of the file; others a decoder gives as well as it can
        found.shown[-1] = False
    return replace(found, timed=timed)


def _index(video: VideoReader, found: _Packets, order: FrameOrder) -> tuple[PacketIndex, np.ndarray, float, float]:
    """The index, the seconds at which frames are shown (float64, from 0), the duration and the frames per second."""
    shown = np.array(found.shown, bool)[order.packets]
    packets = order.packets[shown]
    if not len(packets):
        raise ChatError(UNDECODABLE)
    # For each packet that begins a frame: how many frames that are shown come before it.
    places = dict(zip(order.packets.tolist(), (np.cumsum(shown) - shown).tolist(), strict=True))
    starts = [key for key in found.keys if key in places] or [0]
    index = PacketIndex(
        packets=packets,
        keys=tuple(starts),
        key_frames=tuple(places.get(key, 0) for key in starts),
        n_packets=len(found.pts),
        depth=0 if order.counted else depth(order.packets),
        paired=order.paired,
        counted=order.counted,
    )
    unit, rate = float(video.stream.time_base or 1), float(video.stream.average_rate or 0)
    last = found.lengths[packets[-1]] * unit
    seconds = _seconds(np.array(found.pts, np.float64)[packets] * unit, 1 / rate if rate > 0 else last or 1 / FPS)
    return index, seconds, *_timing(seconds, last, rate)


def _with_head(video: VideoReader, key: int, order: FrameOrder, pixels: int, check: Check) -> FrameOrder:
    """The order, where frames come before the first key: only a decoder tells which of these it gives.

    What they refer to may lie before the file. pixels: of a frame.
    """
    places = np.flatnonzero(order.packets == key)
    lead = order.packets[: places[0]] if len(places) else places
    if not len(lead) or order.counted:
        return order
    last = max(int(lead.max()), key) + order.paired
    most = _MOST_HEAD * min(_FULL_HD, pixels) // pixels
    video.restart(check, _MOST_HEAD * _FULL_HD)
    given = video.given(min(last, most - 1))
    rest = order.packets[len(lead) :]
    if last >= most:
        return order if given else replace(order, packets=rest)
    if key not in given:
        return order
    head = given[: given.index(key)]
    # MPEG-4's decoder makes a frame up where none is to refer to: then two have the number of one packet.
    return replace(order, packets=np.array([*head, *rest.tolist()], np.int64), counted=len(set(head)) < len(head))


def _seconds(times: np.ndarray, step: float) -> np.ndarray:
    """float64 [frames], from 0: the times of all frames, ascending, or even `step`s where they can be no film's."""
    if len(times) > 1 and (times.min() == times.max() or not possible(np.argsort(times, kind="stable"))):
        return np.arange(len(times)) * step
    found: np.ndarray = np.sort(times) - times.min()
    return found


def _vp9_shows(packet: memoryview) -> bool:
    """Of the header of a packet's only frame (section 6.2 of the specification); of several one is shown."""
    if packet[-1] & 0xE0 == 0xC0:
        return True
    head = packet[0] << 1 if packet[0] & 0x30 == 0x30 else packet[0]  # profile 3 has a bit more
    return bool(head & 0x0A)  # show_existing_frame, show_frame


def _shows(packet: memoryview) -> bool:
    """Whether a packet of AV1 holds a frame that is shown, and not only ones that are referred to.

    Raises ChatError for a packet with many frames: a decoder gives all at once, and they are not counted.
    The units are those of the specification's section 5.3 (open_bitstream_unit), the bits those of 5.9.2.
    """
    at = frames = 0
    shows = False
    for _ in range(_MOST_UNITS):
        if at >= len(packet) or frames > _MOST_FRAMES:
            break
        head, size = packet[at], 0
        at += 1 + (head >> 2 & 1)
        sized = head & 2
        for i, seven in enumerate(packet[at : at + 8] if sized else b""):
            size |= (seven & 0x7F) << 7 * i
            at += 1
            if seven < 0x80:
                break
        if head >> 3 & 15 in (3, 6):
            frames += 1
            shows = shows or bool(at < len(packet) and packet[at] & 0x90)  # show_existing_frame, show_frame
        if not sized:  # it is the last one
            break
        at += size
    else:
        frames = _MOST_FRAMES + 1
    if frames > _MOST_FRAMES:
        raise ChatError(f"a packet of the video holds more than {_MOST_FRAMES} frames")
    return shows


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
