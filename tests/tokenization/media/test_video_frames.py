"""Clips of every kind and lists of pictures are read frame by frame, upright and at their times."""

import io
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from av.sidedata.sidedata import SideData
from PIL import Image

from configs.serve import MediaConfig
from tests.samples.videos import (
    B_FRAMES,
    KINDS,
    draw_noise,
    draw_noisy_number,
    make_clip,
    read_numbers,
)
from tests.tables import each_of
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import sample_frames
from tokenization.media.video_frames import read_frames
from tokenization.media.video_probe import probe

CAPS = MediaConfig()
SIZE = (56, 112)


# ---- which frame is which


@pytest.mark.slow
@each_of("kind", KINDS)
def test_each_frame_is_the_one_that_was_asked_for(kind: str) -> None:
    data = make_clip(**KINDS[kind])
    info = probe(data, CAPS)
    assert (info.n_frames, info.width, info.height, info.rotation) == (60, 160, 96, 0)
    assert info.fps == pytest.approx(30, rel=2e-3)
    assert info.duration == pytest.approx(2, rel=2e-3)
    assert np.allclose(info.timestamps, np.arange(60) / 30, atol=0.011)
    assert sum(packet.size for packet in info.reader.packets()) <= len(data)  # no honest packets share their bytes
    for wanted in ([0], [59], [17, 18], [5, 11, 12, 13, 47], [0, 20, 39, 59], list(range(60))):
        frames, got = read_frames(data, info, wanted, SIZE, CAPS)
        assert got == tuple(wanted)
        assert frames.shape == (len(wanted), *SIZE, 3) and frames.dtype == np.uint8
        assert read_numbers(frames) == wanted


def test_av1() -> None:
    """40 numbered frames, a key frame every 20, some of them only shown again by a later packet.

    Stored, because the one encoder at hand, SVT-AV1, takes real-time priority where it may and starves its neighbours.
    """
    data = Path(__file__).with_name("av1.mkv").read_bytes()
    info = probe(data, CAPS)
    assert (info.n_frames, info.fps, info.width, info.height) == (40, 30.0, 160, 96)
    for wanted in ([3, 7, 16, 17, 38], list(range(40))):
        frames, got = read_frames(data, info, wanted, SIZE, CAPS)
        assert read_numbers(frames) == wanted == list(got)


@each_of("size", [(96, 160), (97, 163), (112, 84), (480, 640)])
def test_each_frame_equals_the_image_class_resize_of_the_same_decoded_frame(size: tuple[int, int]) -> None:
    data = make_clip(24, size=size if size[0] % 2 else (96, 160), pixels="yuv444p", draw=draw_noise)
    with av.open(io.BytesIO(data), "r") as container:
        whole = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    wanted = [0, 3, 11, 12, 23]
    frames, _ = read_frames(data, probe(data, CAPS), wanted, size, CAPS)
    for frame, number in zip(frames, wanted, strict=True):
        expected = Image.fromarray(whole[number]).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        assert np.array_equal(frame, np.asarray(expected))


def test_skipping_frames_changes_no_pixel() -> None:
    """Frames that nothing depends on are passed over on the way; what comes out is the same as without that."""
    data = make_clip(70, options=B_FRAMES, key_every=35, draw=draw_noise)
    info = probe(data, CAPS)
    whole, _ = read_frames(data, info, range(70), (96, 160), CAPS)
    for step in (3, 7, 16, 33):
        wanted = list(range(1, 70, step))
        frames, got = read_frames(data, info, wanted, (96, 160), CAPS)
        assert got == tuple(wanted)
        assert np.array_equal(frames, whole[wanted])


def test_a_frame_may_be_asked_for_twice_and_in_any_order(plain: bytes) -> None:
    frames, got = read_frames(memoryview(plain), probe(memoryview(plain), CAPS), [30, 2, 30, 2], SIZE, CAPS)
    assert got == (30, 2, 30, 2)
    assert read_numbers(frames) == [30, 2, 30, 2]


def test_eight_hundred_frames() -> None:
    data = make_clip(800, rate=25, options={"preset": "ultrafast"}, key_every=50)
    info = probe(data, CAPS)
    assert (info.n_frames, info.fps, info.duration) == (800, 25.0, 32.0)
    sampling = sample_frames(info.n_frames, info.fps, MediaOptions(fps=0.5), CAPS)
    frames, got = read_frames(data, info, sampling.indices, SIZE, CAPS)
    assert got == sampling.indices and len(got) == 16
    assert read_numbers(frames) == [n & 1023 for n in sampling.indices]


def test_one_frame_is_a_clip() -> None:
    for data in (make_clip(1), make_clip(1, codec="gif", container="gif", pixels="rgb8")):
        info = probe(data, CAPS)
        assert info.n_frames == 1 and info.duration > 0
        sampling = sample_frames(info.n_frames, info.fps, MediaOptions(), CAPS)
        frames, got = read_frames(data, info, sampling.indices, SIZE, CAPS)
        assert got == (0, 0)
        assert np.array_equal(frames[0], frames[1])


def test_frames_that_are_only_referred_to_do_not_count() -> None:
    """VP8's alternate references: packets of their own, which are never shown."""
    data = make_clip(30, codec="libvpx", container="webm", draw=draw_noisy_number)
    with av.open(io.BytesIO(data), "r") as container:
        packets = [bytes(packet) for packet in container.demux(video=0)]
    hidden = bytearray(data)
    for number in (5, 20):
        hidden[data.index(packets[number])] &= ~0x10  # the bit that says: show it
    info = probe(bytes(hidden), CAPS)
    assert info.n_frames == 28
    frames, got = read_frames(bytes(hidden), info, [4, 5, 6, 19, 27], SIZE, CAPS)
    assert read_numbers(frames) == [4, 6, 7, 21, 29]
    assert got == (4, 5, 6, 19, 27)


@pytest.mark.parametrize("container", ["mp4", "matroska"])
def test_variable_frame_rate_keeps_its_times(container: str) -> None:
    times = [0, 33, 67, 500, 520, 541, 2000, 2001, 2100, 3900]
    data = make_clip(10, container=container, times_ms=times, key_every=4)
    info = probe(data, CAPS)
    assert info.n_frames == 10
    assert np.allclose(info.timestamps, np.array(times) / 1000, atol=0.0011)
    assert info.duration >= 3.9
    assert info.fps == pytest.approx(10 / info.duration, rel=0.05)
    frames, got = read_frames(data, info, [1, 4, 7, 9], SIZE, CAPS)
    assert read_numbers(frames) == [1, 4, 7, 9] == list(got)


def test_a_clip_that_begins_late_begins_at_zero() -> None:
    info = probe(make_clip(10, container="matroska", times_ms=[5000 + 40 * i for i in range(10)]), CAPS)
    assert info.timestamps[0] == 0 and info.timestamps[-1] == pytest.approx(0.36)
    assert info.duration == pytest.approx(0.4, abs=0.05)


def test_frames_that_an_edit_list_cuts_off_do_not_count() -> None:
    """A cut inside a group of pictures, as phones make it: what lies before it is decoded and never shown."""
    data = make_clip(40, key_every=20, options={"bf": "0"})
    cut = cut_start(data, frames=25)
    info = probe(cut, CAPS)
    assert info.n_frames == 15
    frames, got = read_frames(cut, info, [0, 7, 14], SIZE, CAPS)
    assert read_numbers(frames) == [25, 32, 39] and got == (0, 7, 14)


def cut_start(data: bytes, frames: int) -> bytes:
    """The MP4 with an edit list that starts later: the media time of its only entry is moved."""
    at = data.index(b"elst")
    assert data[at + 4] == 0 and int.from_bytes(data[at + 8 : at + 12], "big") == 1
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        assert stream.time_base is not None
        ticks = int(frames / 30 / stream.time_base)
    out = bytearray(data)
    begin = int.from_bytes(data[at + 16 : at + 20], "big")
    out[at + 16 : at + 20] = (begin + ticks).to_bytes(4, "big")
    return bytes(out)


@each_of("rate", [24, 25, 30, 60, Fraction(30000, 1001), Fraction(24000, 1001)])
def test_a_constant_rate_is_exact_where_times_are_rounded(rate: int | Fraction) -> None:
    """Matroska counts milliseconds: frames / duration alone would be a little off, and so would the frame count."""
    for container in ("matroska", "mp4"):
        info = probe(make_clip(47, container=container, rate=rate, options={"preset": "ultrafast"}), CAPS)
        assert info.fps == float(rate)


# ---- how it is turned


@each_of("flip", [False, True])
@each_of("degrees", [0, 90, 180, 270])
def test_rotation_metadata_makes_frames_upright(degrees: int, flip: bool) -> None:
    data = make_clip(4, draw=corners, turn=(degrees, flip))
    info = probe(data, CAPS)
    upright = (160, 96) if degrees in (90, 270) else (96, 160)
    assert (info.height, info.width) == upright
    frames, _ = read_frames(data, info, [2], upright, CAPS)
    with av.open(io.BytesIO(data), "r") as container:
        stored = list(container.decode(video=0))[2]
    assert np.array_equal(frames[0], shown(stored))
    if not flip:
        assert np.array_equal(frames[0], np.rot90(stored.to_ndarray(format="rgb24"), degrees // 90))


def corners(number: int, width: int, height: int) -> np.ndarray:
    picture = np.full((height, width, 3), 40 * number, np.uint8)
    picture[: height // 2, : width // 2] = (255, 0, 0)
    picture[: height // 2, width // 2 :] = (0, 255, 0)
    picture[height // 2 :, : width // 2] = (0, 0, 255)
    return picture


def shown(frame: av.VideoFrame) -> np.ndarray:
    """What the display matrix of a frame makes of it, point by point."""
    stored = frame.to_ndarray(format="rgb24")
    side = frame.side_data.get("DISPLAYMATRIX")
    if not isinstance(side, SideData):
        return stored
    a, b, _, c, d = (np.frombuffer(bytes(side), np.int32, count=5) / 65536).round().astype(int).tolist()
    height, width = stored.shape[:2]
    rows, columns = np.mgrid[:height, :width]
    x, y = a * columns + c * rows, b * columns + d * rows
    x, y = x - x.min(), y - y.min()
    out = np.zeros((y.max() + 1, x.max() + 1, 3), np.uint8)
    out[y, x] = stored
    return out


def test_transparent_pixels_are_white() -> None:
    frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 4), np.uint8), format="rgba")
    sink = io.BytesIO()
    with av.open(sink, "w", format="matroska") as output:
        stream = output.add_stream("ffv1", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "bgra"
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    frames, _ = read_frames(sink.getvalue(), probe(sink.getvalue(), CAPS), [0], (28, 28), CAPS)
    assert (frames == 255).all()


def test_colours_follow_the_tags_of_the_clip() -> None:
    """Pure green in BT.709 is another one when read as BT.601."""
    green = np.zeros((64, 64, 3), np.uint8)
    green[..., 1] = 200
    source = av.VideoFrame.from_ndarray(green, format="rgb24")
    frame = source.reformat(format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG")
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=10, options={"qp": "0", "colorprim": "bt709"})
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        stream.codec_context.colorspace = 1  # BT.709
        output.mux(stream.encode(frame))
        output.mux(stream.encode())
    frames, _ = read_frames(sink.getvalue(), probe(sink.getvalue(), CAPS), [0], (28, 28), CAPS)
    assert np.abs(frames[0].astype(int) - green[:28, :28]).max() <= 4
