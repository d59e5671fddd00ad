"""Makes small clips whose frames say their own number, for tests and benchmarks. Knows nothing of the server."""

import io
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from PIL import Image

# H.264 as phones and cameras write it: frames out of order, and some that no other depends on.
B_FRAMES = {"bf": "3", "b-pyramid": "normal", "preset": "veryfast", "sc_threshold": "0"}
# Containers and codecs as they come, and what `make_clip` takes to make each.
KINDS: dict[str, dict[str, Any]] = {
    "mp4 h264 with b-frames": {"options": B_FRAMES},
    "mp4 h264 open gop": {"options": {**B_FRAMES, "x264-params": "open-gop=1:slices=1"}},
    "mov prores 10 bit": {"codec": "prores", "container": "mov", "pixels": "yuv422p10le"},
    "mp4 h265 10 bit": {"codec": "libx265", "pixels": "yuv420p10le", "options": {"x265-params": "log-level=none"}},
    # No AV1: its only encoder here, SVT-AV1, gives a root process real-time priority, which starves everything else.
    "mkv h264": {"container": "matroska", "options": B_FRAMES},
    "mkv ffv1 with alpha": {"codec": "ffv1", "container": "matroska", "pixels": "yuva420p"},
    "mkv ffv1 gray": {"codec": "ffv1", "container": "matroska", "pixels": "gray"},
    "webm vp8": {"codec": "libvpx", "container": "webm"},
    "webm vp9 with hidden frames": {
        "codec": "libvpx-vp9",
        "container": "webm",
        "options": {"auto-alt-ref": "1", "lag-in-frames": "16"},
    },
    "avi mpeg4 with b-frames": {"codec": "mpeg4", "container": "avi", "options": {"bf": "2"}},
    "avi h264 without times": {"container": "avi", "options": B_FRAMES},
    "avi mjpeg": {"codec": "mjpeg", "container": "avi", "pixels": "yuvj420p"},
    "mpeg-ts h264": {"container": "mpegts", "options": B_FRAMES},
    "mpeg-ps mpeg2": {"codec": "mpeg2video", "container": "mpeg", "options": {"bf": "2"}},
    "flv h264": {"container": "flv", "options": B_FRAMES},
    "gif": {"codec": "gif", "container": "gif", "pixels": "rgb8"},
}
BITS = 10  # of the number that a frame shows, as columns that are black or white


def draw_number(number: int, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3]: column b is white where bit b of the number is set."""
    picture = np.zeros((height, width, 3), np.uint8)
    for bit in range(BITS):
        picture[:, bit * width // BITS : (bit + 1) * width // BITS] = 255 * (number >> bit & 1)
    return picture


def read_number(picture: np.ndarray) -> int:
    """What `draw_number` drew, also after lossy coding and resizing."""
    height, width, _ = picture.shape
    middles = [picture[height // 2, (2 * bit + 1) * width // (2 * BITS)].mean() for bit in range(BITS)]
    return sum(1 << bit for bit, value in enumerate(middles) if value > 127)


def read_numbers(frames: np.ndarray) -> list[int]:
    """What `draw_number` drew on each of the frames [n, height, width, 3]."""
    return [read_number(frame) for frame in frames]


def draw_noise(number: int, width: int, height: int) -> np.ndarray:
    """uint8 [height, width, 3] of coloured squares, the same for the same number."""
    coarse = np.random.default_rng(number).integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
    return np.ascontiguousarray(coarse.repeat(8, 0).repeat(8, 1)[:height, :width])


def draw_noisy_number(number: int, width: int, height: int) -> np.ndarray:
    """The number among squares: no two packets are alike, and what is damaged does not look right."""
    return np.where(draw_noise(number, width, height) > 250, 128, draw_number(number, width, height)).astype(np.uint8)


def make_clip(
    n: int = 60,
    *,
    codec: str = "libx264",
    container: str = "mp4",
    pixels: str = "yuv420p",
    size: tuple[int, int] = (96, 160),
    rate: int | Fraction = 30,
    times_ms: Sequence[int] | None = None,
    key_every: int = 12,
    options: Mapping[str, str] | None = None,
    turn: tuple[float, bool] | None = None,
    draw: Callable[[int, int, int], np.ndarray] = draw_number,
    path: Path | None = None,
) -> bytes:
    """The bytes of a clip of `n` frames of `size` (height, width), shown at `times_ms` or `rate` times a second.

    `turn`: degrees counter-clockwise, flip, as the display matrix says. `path`: a new file to write, which MP4 with its
    index at the front needs.
    """
    height, width = size
    sink: io.BytesIO | str = io.BytesIO() if path is None else str(path)
    muxer = {"movflags": "faststart"} if path is not None else {}
    with av.open(sink, "w", format=container, options=muxer) as output:
        stream = output.add_stream(codec, rate=rate, options=dict(options or {}))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        if codec != "gif":
            stream.gop_size = key_every
        if times_ms is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        if turn is not None:
            stream.set_display_rotation(turn[0], hflip=turn[1])
        for i in range(n):
            frame = av.VideoFrame.from_ndarray(draw(i, width, height), format="rgb24")
            if times_ms is not None:
                frame.pts, frame.time_base = times_ms[i], Fraction(1, 1000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return sink.getvalue() if isinstance(sink, io.BytesIO) else Path(sink).read_bytes()


def make_sound(container: str = "mp4") -> bytes:
    """The bytes of a second of silence, without a picture."""
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        stream = output.add_stream("aac", rate=16000, layout="mono")
        assert isinstance(stream, av.AudioStream)
        for i in range(16):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = 16000, 1024 * i, Fraction(1, 16000)
            output.mux(stream.encode(frame))
        output.mux(stream.encode())
    return sink.getvalue()


def make_png() -> bytes:
    """A still picture of the number 5."""
    sink = io.BytesIO()
    Image.fromarray(draw_number(5, 160, 96)).save(sink, "PNG")
    return sink.getvalue()


def make_jpeg(number: int, size: tuple[int, int] = (96, 160), exif: Image.Exif | None = None) -> bytes:
    """A still picture of a number, of `size` (height, width)."""
    sink = io.BytesIO()
    Image.fromarray(draw_number(number, size[1], size[0])).save(sink, "JPEG", exif=exif or Image.Exif())
    return sink.getvalue()
