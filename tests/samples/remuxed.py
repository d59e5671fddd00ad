"""Puts the packets of a clip into another file: with other times, without some of them, or packed together."""

import io
from collections.abc import Callable, Iterator, Sequence

import av
import numpy as np
from av.bitstream import BitStreamFilterContext
from av.packet import Packet
from av.video.stream import VideoStream

from tests.samples.videos import read_number

Times = Callable[[int, int | None, int | None], tuple[int | None, int | None]]


def as_they_are(number: int, pts: int | None, dts: int | None) -> tuple[int | None, int | None]:
    return pts, dts


def as_decoded(number: int, pts: int | None, dts: int | None) -> tuple[int | None, int | None]:
    """Each frame is said to be shown when it is decoded."""
    return dts, dts


def remuxed(
    data: bytes,
    container: str,
    times: Times = as_they_are,
    *,
    first: int = 0,
    through: str | None = None,
    change: Callable[[Sequence[bytes]], Sequence[bytes]] | None = None,
) -> bytes:
    """The packets from number `first` on. times: (pts, dts) of each, of what it had. through: a filter of FFmpeg's.

    change: what becomes of the packets' bytes, as many of them.
    """
    sink = io.BytesIO()
    with av.open(io.BytesIO(data), "r") as source, av.open(sink, "w", format=container) as output:
        stream = source.streams.video[0]
        target = output.add_stream_from_template(stream, opaque=True)
        packets = list(_through(source.demux(stream), stream, through))
        contents = [bytes(packet) for packet in packets]
        for number, (packet, content) in enumerate(zip(packets, change(contents) if change else contents, strict=True)):
            if number < first:
                continue
            new = Packet(content)
            new.time_base, new.duration, new.is_keyframe = packet.time_base, packet.duration, packet.is_keyframe
            new.pts, new.dts = times(number, packet.pts, packet.dts)
            new.stream = target
            output.mux(new)
    return sink.getvalue()


def packed(vops: Sequence[bytes]) -> list[bytes]:
    """MPEG-4 as DivX packs it: a B-VOP lies behind the VOP that it needs, and a place holder follows the last one."""
    place_holder = bytes.fromhex("000001b6500f7f")
    mark = b"\0\0\1\xb2DivX503b1393p"
    at = vops[0].index(b"\0\0\1\xb6")
    out = [vops[0][:at] + mark + vops[0][at:]]
    for number, vop in enumerate(vops[1:], start=1):
        following = vops[number + 1] if number + 1 < len(vops) else b""
        if not is_b_vop(vop):
            out.append(vop + following if is_b_vop(following) else vop)
        else:
            out.append(following if is_b_vop(following) else place_holder)
    return out


def is_b_vop(vop: bytes) -> bool:
    at = vop.find(b"\0\0\1\xb6")
    return at >= 0 and vop[at + 4] >> 6 == 2


def decoded_numbers(data: bytes) -> list[int]:
    """What the frames show that FFmpeg's decoder gives, from the first packet to the last."""
    with av.open(io.BytesIO(data), "r") as container:
        return [read_number(frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]


def decoded_frames(data: bytes) -> list[np.ndarray]:
    """The same, as uint8 [height, width, 3]."""
    with av.open(io.BytesIO(data), "r") as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


# ---- details


def _through(
    packets: "Iterator[Packet[VideoStream]]", stream: VideoStream, name: str | None
) -> "Iterator[Packet[VideoStream]]":
    filled = (packet for packet in packets if packet.size)
    if name is None:
        yield from filled
        return
    chosen = BitStreamFilterContext(name, stream)
    for packet in filled:
        yield from chosen.filter(packet)
    yield from chosen.filter(None)
