"""Writes H.264 by hand: pictures whose samples are stored as they are, in any order, as frames or as fields."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import av

from tests.samples.videos import BITS

WIDTH, HEIGHT = 16 * BITS, 32  # pixels; a macroblock for each bit of a number, two rows of them


@dataclass(frozen=True, kw_only=True)
class Coded:
    """One picture. None depends on another one, and those that are no `key` do not say so."""

    number: int  # that it shows
    count: int  # pic_order_cnt_lsb: its place among those from the last key on
    key: bool = False  # IDR
    field: int | None = None  # 0: a top field, 1: a bottom one; None: a frame
    frame_num: int = 0


def annex_b(pictures: Sequence[Coded], *, reorders: int | None, fields: bool = False) -> list[bytes]:
    """A packet for each picture. reorders: max_num_reorder_frames as the stream says it; None: it does not."""
    heads = _unit(0x67, _sps(reorders, fields)) + _unit(0x68, "1" + "1" + "00" + "1" * 3 + "000" + "1" * 3 + "000")
    return [(heads if picture.key else b"") + _unit(0x65 if picture.key else 0x21, *_slice(picture, fields))
            for picture in pictures]  # fmt: skip


def film(packets: Sequence[bytes], times: Sequence[int | None], container: str = "matroska") -> bytes:
    """The packets in a container, each shown at so many frames of 1/25 s; decoded in the order in which they lie."""
    sink = io.BytesIO()
    with (
        av.open(io.BytesIO(b"".join(packets)), "r", format="h264") as raw,
        av.open(sink, "w", format=container) as output,
    ):
        stream = output.add_stream_from_template(raw.streams.video[0])
        for number, (data, time) in enumerate(zip(packets, times, strict=True)):
            packet = av.Packet(data)
            unit = raw.streams.video[0].time_base or Fraction(1, 25)
            packet.stream, packet.time_base = stream, unit
            tick = round(1 / 25 / unit)
            packet.dts = (number - 40) * tick
            packet.pts = None if time is None else time * tick
            packet.is_keyframe = data.find(b"\0\0\1\x65") >= 0
            output.mux(packet)
    return sink.getvalue()


# ---- details


def _ue(number: int) -> str:
    code = f"{number + 1:b}"
    return "0" * (len(code) - 1) + code


def _sps(reorders: int | None, fields: bool) -> str:
    numbers = [0, 4, 0, 4, 4]  # its id, bits of frame_num - 4, pic_order_cnt_type, bits of the count - 4, references
    size = [WIDTH // 16 - 1, HEIGHT // (32 if fields else 16) - 1]
    bits = f"{77:08b}{0:08b}{40:08b}" + "".join(map(_ue, numbers)) + "0" + "".join(map(_ue, size))
    bits += "00" if fields else "1"  # frame_mbs_only_flag, mb_adaptive_frame_field_flag
    bits += "10"  # direct_8x8_inference_flag, frame_cropping_flag
    if reorders is None:
        return bits + "0"
    return bits + "1" + "0" * 8 + "1" + "1" + "".join(map(_ue, [0, 0, 10, 10, reorders, 16]))


def _slice(picture: Coded, fields: bool) -> tuple[str, bytes]:
    """The header's bits, and the bytes of all macroblocks, of type I_PCM."""
    bits = _ue(0) + _ue(7) + _ue(0) + f"{picture.frame_num:08b}"
    if fields:
        bits += "0" if picture.field is None else f"1{picture.field}"
    bits += (_ue(0) if picture.key else "") + f"{picture.count & 255:08b}" + ("00" if picture.key else "0") + _ue(0)
    bits += _ue(25)
    bits += "0" * (-len(bits) % 8)
    rows = HEIGHT // 16 // (1 if picture.field is None else 2)
    luma = [bytes([235 if picture.number >> bit & 1 else 16]) * 256 for bit in range(BITS)]
    between = int(_ue(25).ljust(16, "0"), 2).to_bytes(2, "big")
    return bits, between.join([square + b"\x80" * 128 for square in luma] * rows)


def _unit(head: int, bits: str, samples: bytes = b"") -> bytes:
    """A unit of the stream: bits up to a whole byte where samples follow, then the bit that ends it."""
    if samples:
        data = int(bits, 2).to_bytes(len(bits) // 8, "big") + samples + b"\x80"
    else:
        bits += "1"
        bits += "0" * (-len(bits) % 8)
        data = int(bits, 2).to_bytes(len(bits) // 8, "big")
    escaped = bytearray([head])
    for byte in data:
        if byte <= 3 and escaped[-2:] == b"\0\0":
            escaped.append(3)
        escaped.append(byte)
    return b"\0\0\0\1" + bytes(escaped)
