"""Frame i is the i-th that the decoder gives, whatever the times of a file's packets say, and seeks find it."""

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.samples.h264_pictures import Coded, annex_b, film
from tests.samples.remuxed import as_decoded, decoded_frames, decoded_numbers, packed, remuxed
from tests.samples.videos import B_FRAMES, draw_noisy_number, make_clip, read_numbers
from tests.tables import each_of
from tokenization.chat.options import MediaOptions
from tokenization.media.containers.frame_order import frame_order
from tokenization.media.containers.h264_order import PictureOrder
from tokenization.media.source import Source
from tokenization.media.video_decoder import open_video
from tokenization.media.video_frames import plan_video, read_frames, read_video
from tokenization.media.video_probe import VideoInfo, probe

CAPS = MediaConfig()
SIZE = (56, 112)
H264: Mapping[str, Any] = {"options": B_FRAMES}
H265: Mapping[str, Any] = {"codec": "libx265", "options": {"x265-params": "log-level=none:pools=1"}}
MPEG4: Mapping[str, Any] = {"codec": "mpeg4", "options": {"bf": "2"}}
MPEG2: Mapping[str, Any] = {"codec": "mpeg2video", "options": {"bf": "2"}}


@cache
def clip(codec: str, container: str = "mp4") -> bytes:
    kinds = {"h264": H264, "h265": H265, "mpeg4": MPEG4, "mpeg2": MPEG2}
    return make_clip(30, container=container, draw=draw_noisy_number, **kinds[codec])


def check(data: bytes, numbers: list[int] | None = None) -> VideoInfo:
    """All frames, and some that are sought, are those that the decoder gives."""
    numbers = decoded_numbers(data) if numbers is None else numbers
    info = probe(data, CAPS)
    assert info.n_frames == len(info.timestamps) == len(numbers) > 8
    n = len(numbers)
    for wanted in (list(range(n)), [2], [n // 2, n - 3]):
        frames, got = read_frames(data, info, wanted, SIZE, CAPS)
        assert list(got) == wanted and read_numbers(frames) == [numbers[i] for i in wanted], wanted
    assert (np.diff(info.timestamps) >= 0).all()
    return info


# ---- times that are those of decoding


@each_of("container", ["mp4", "matroska", "flv"])
def test_times_of_decoding_h264(container: str) -> None:
    info = check(remuxed(clip("h264"), container, as_decoded))
    assert not info.index.counted and info.fps == 30


@each_of(("codec", "container"), [("mpeg4", "mp4"), ("mpeg4", "matroska"), ("mpeg2", "mp4"), ("mpeg2", "matroska")])
def test_times_of_decoding_mpeg(codec: str, container: str) -> None:
    info = check(remuxed(clip(codec), container, as_decoded))
    assert not info.index.counted and info.fps == 30


def test_times_of_decoding_h265() -> None:
    """Its pictures are not counted here: a decoder says that it gives frames in another order, and is asked for it."""
    assert check(remuxed(clip("h265"), "mp4", as_decoded)).index.counted
    assert not check(clip("h265")).index.counted


def test_times_that_claim_another_order_than_the_decoder_has() -> None:
    plain = {**H265, "options": {"x265-params": "log-level=none:bframes=0:pools=1"}}
    data = make_clip(20, draw=draw_noisy_number, container="matroska", **plain)
    assert not check(data).index.counted
    assert check(remuxed(data, "matroska", lambda n, pts, dts: (33 * n + 100 * (7 * n % 5), 33 * n))).index.counted


@each_of("codec", ["h264", "mpeg4", "mpeg2", "h265"])
def test_equal_times(codec: str) -> None:
    info = check(remuxed(clip(codec, "matroska"), "matroska", lambda n, pts, dts: (0, 0)))
    assert info.fps == 30 and info.duration == pytest.approx(1, abs=0.002)


@each_of("codec", ["h264", "mpeg2"])
def test_times_that_begin_again(codec: str) -> None:
    """Two parts of a broadcast, one behind the other."""
    info = check(clip(codec, "mpegts") * 2)
    assert (info.n_frames, info.fps) == (60, 30) and info.duration == pytest.approx(2)


def test_a_program_stream_of_which_not_all_packets_have_times() -> None:
    check(make_clip(60, container="mpeg", draw=draw_noisy_number, **MPEG2))


def test_times_of_codecs_that_give_frames_as_they_lie() -> None:
    """Motion JPEG: no times of a muxer change that."""
    data = make_clip(30, codec="mjpeg", container="avi", pixels="yuvj420p")
    assert not check(remuxed(data, "mov", lambda n, pts, dts: (n + 3 * (7 * n % 5), n))).index.counted


# ---- frames and packets that are not one to one


@each_of(("container", "times"), [("avi", lambda n, pts, dts: (512 * n, 512 * n)), ("matroska", as_decoded)])
def test_packed_b_frames(container: str, times: Callable[..., tuple[int, int]]) -> None:
    data = remuxed(clip("mpeg4"), container, times, change=packed)
    assert decoded_numbers(data) == list(range(30))
    check(data)


def test_vops_that_are_not_coded_are_no_frames() -> None:
    """Xvid writes such for what it leaves out: a few bytes, of which a decoder makes nothing."""
    empty = bytes.fromhex("000001b650cf")
    data = make_clip(30, codec="mpeg4", container="matroska", draw=draw_noisy_number)
    lacking = remuxed(data, "matroska", change=lambda vops: [*vops[:5], empty, empty, *vops[7:17], empty, *vops[18:]])
    assert probe(lacking, CAPS).n_frames == 27
    check(lacking)


def coded(n: int, *, fields: bool = False) -> list[Coded]:
    """A key, then always one picture and the two before it; each as two fields where it is asked for."""
    shown = [0, *(i for first in range(1, n - 2, 3) for i in (first + 2, first, first + 1))]
    return [
        Coded(number=i, count=2 * i + part, key=place + part == 0, field=part if fields else None, frame_num=place)
        for place, i in enumerate(shown)
        for part in range(1 + fields)
    ]


def test_two_fields_are_one_frame() -> None:
    """Each in a packet of its own, as cameras and broadcasts have it."""
    pictures = coded(25, fields=True)
    for times in ([2 * picture.number + (picture.field or 0) for picture in pictures], list(range(50))):
        for container in ("mp4", "mpegts"):
            data = film(annex_b(pictures, reorders=2, fields=True), times, container)
            numbers = decoded_numbers(data)
            assert numbers == list(range(25)) or container == "mp4"  # whose edit list may cut the first one off
            assert check(data, numbers).index.paired


def test_a_stream_that_says_it_has_fewer_frames_out_of_order() -> None:
    """FFmpeg believes it, and gives only those that come in order; the pictures themselves say what is kept back."""
    pictures = coded(25)
    for reorders in (0, None, 1):
        data = film(annex_b(pictures, reorders=reorders), [picture.number for picture in pictures])
        assert reorders == 0 or decoded_numbers(data) == list(range(25))
        check(data, list(range(25)))


def test_frames_of_vp9_and_av1_that_are_only_referred_to() -> None:
    data = make_clip(30, codec="libvpx-vp9", container="webm", options={"cpu-used": "8"}, draw=draw_noisy_number)
    hidden = bytearray(data)
    packets = [bytes(packet) for packet in open_video(data, CAPS).packets()]
    hidden[data.index(packets[12])] &= ~2  # a key frame: the bit that says show it
    assert probe(bytes(hidden), CAPS).n_frames == 29
    check(bytes(hidden))
    stored = Path(__file__).with_name("av1.mkv").read_bytes()
    check(remuxed(stored, "matroska", lambda n, pts, dts: (10 * n, 10 * n), through="av1_frame_split"))


# ---- files that begin in the middle


@each_of("codec", ["h264", "h265", "mpeg2", "mpeg4"])
def test_frames_before_the_first_key(codec: str) -> None:
    """MPEG-4's decoder makes up what such frames refer to; the others leave them out."""
    data = remuxed(clip(codec, "matroska"), "matroska", first=4)
    info = probe(data, CAPS)
    expected = decoded_frames(data)
    frames, _ = read_frames(data, info, range(info.n_frames), (96, 160), CAPS)
    assert info.n_frames == len(expected) and np.array_equal(frames, np.stack(expected))


def test_frames_before_a_key_of_vp9() -> None:
    """FFmpeg's decoder ended the whole process over it."""
    data = make_clip(30, codec="libvpx-vp9", container="webm", options={"cpu-used": "8"}, draw=draw_noisy_number)
    check(remuxed(data, "webm", first=4), list(range(12, 30)))


def test_no_more_of_the_beginning_is_decoded_than_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    data = remuxed(clip("h264", "matroska"), "matroska", first=4)
    monkeypatch.setattr("tokenization.media.video_probe._MOST_HEAD", 5)
    assert check(data, list(range(12, 30))).reader.tried == 5
    monkeypatch.setattr("tokenization.media.video_probe._FULL_HD", 96 * 160 * 2 // 5)
    assert probe(data, CAPS).reader.tried == 2


# ---- what is looked at


def test_frames_are_planned_and_read_in_the_true_order() -> None:
    data = remuxed(clip("h264"), "matroska", as_decoded)
    source = Source(kind="video", param="v", data=data, frames=(), options=MediaOptions(fps=10))
    plan = plan_video(source, CAPS, factor=28)
    assert len(plan.indices) == 10 and plan.seconds_per_grid == pytest.approx(0.2)
    assert read_numbers(read_video(source, plan, CAPS)) == list(plan.indices)


def test_a_seek_in_a_file_whose_times_are_untrue_decodes_no_more(decoded: list[int]) -> None:
    for codec in ("h264", "mpeg4"):
        counts = []
        for data in (clip(codec), remuxed(clip(codec), "matroska", as_decoded)):
            info = probe(data, CAPS)
            decoded.clear()
            read_frames(data, info, [28], SIZE, CAPS)
            counts.append(len(decoded))
        assert counts[0] == counts[1] < 15


# ---- the headers of H.264


@each_of(
    ("n", "more"),
    [
        (60, {"options": {**B_FRAMES, "x264-params": "cqm=jvt:slices=4"}}),  # scaling lists
        (60, {"pixels": "yuv444p", "options": {**B_FRAMES, "x264-params": "cqm=jvt"}}),
        (60, {"pixels": "yuv420p10le"}),
        (60, {"pixels": "gray"}),
        (60, {"options": {**B_FRAMES, "x264-params": "tff=1"}}),
        (60, {"options": {**B_FRAMES, "x264-params": "open-gop=1"}}),
        (60, {"options": {**B_FRAMES, "x264-params": "intra-refresh=1"}}),
        (60, {"options": {**B_FRAMES, "x264-params": "aud=1:nal-hrd=vbr:vbv-maxrate=500:vbv-bufsize=500:bitrate=300"}}),
        (200, {"key_every": 1000, "options": {**B_FRAMES, "x264-params": "ref=16:bframes=12:b-adapt=0"}}),
        (60, {"options": {"profile": "baseline"}}),
    ],
)
def test_the_order_that_pictures_count_is_that_of_true_times(n: int, more: Mapping[str, Any]) -> None:
    for container in ("mp4", "mpegts"):
        given: dict[str, Any] = {"options": B_FRAMES, **more}
        reader = open_video(make_clip(n, container=container, size=(32, 32), **given), CAPS)
        packets = list(reader.packets())
        extradata = reader.stream.codec_context.extradata
        order = frame_order("h264", extradata, map(bytes, packets), [0] * n, timed=False)
        assert (order.counted, order.timed, order.paired) == (False, False, False)
        assert order.packets.tolist() == sorted(range(n), key=lambda number: packets[number].pts or 0)


def test_headers_that_do_not_tell_are_no_error() -> None:
    """Then times are believed where they may be true."""
    rng = np.random.default_rng(0)
    heads = [b"", b"\1", b"\1\x64\0\x1e\xff\xff\xff\xff", b"\0\0\1\x67" + bytes(2000), b"\1" + bytes(40)]
    heads += [b"\0\0\1\x67" + rng.integers(0, 256, 40, dtype=np.uint8).tobytes() for _ in range(200)]
    for head in heads:
        for data in (b"\0\0\1\x65", b"\0\0\1\x65\x88", b"\0\0\0\2\x65\x88", b"\0\0\1" * 200, bytes(60)):
            order = frame_order("h264", head, [data] * 4, [2, 0, 1, 3], timed=True)
            assert sorted(order.packets.tolist()) == list(range(4))


def test_parameter_sets_without_end_are_not_read() -> None:
    """A file may hold one every ten bytes."""
    head = annex_b(coded(4), reorders=2)[0]
    sets = [b"\0\0\1\x67" + number.to_bytes(3, "big") + b"\x9f" * 1000 for number in range(3000)]
    order = frame_order("h264", head, sets, list(range(3000)), timed=True)
    assert order.timed and order.in_order


def test_units_without_a_byte_are_passed_over() -> None:
    """Behind lengths, as in MP4: where such a unit is asked for its type, the next one's length answers."""
    (packet,) = annex_b([Coded(number=1, count=4, key=True)], reorders=0)
    units = [unit for unit in packet.split(b"\0\0\0\1") if unit]
    record = b"\1\x42\0\x0a\xff\xe0\0"  # no parameter sets, lengths of four bytes
    plain, empty = b"", b""
    for unit in units:
        plain += len(unit).to_bytes(4, "big") + unit
        empty += bytes(4) + len(unit).to_bytes(4, "big") + unit
    place = PictureOrder(record).place(plain)
    assert place is not None and (place.period, place.order) == (1, 4)
    assert PictureOrder(record).place(empty) == place
    for kind in (7, 8):  # the type of the next unit's length: that of a parameter set
        assert PictureOrder(record).place(bytes(4) + bytes([kind, 0, 0, 0])) is None
