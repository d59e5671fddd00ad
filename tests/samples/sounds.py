"""Makes small sounds in every format that the server reads, for tests and benchmarks. Knows nothing of the server."""

import io
import struct
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import av
import numpy as np

from tests.samples.videos import draw_number

# Containers and codecs as they come, and what `encode_sound` takes to make each.
SOUND_KINDS: dict[str, dict[str, Any]] = {
    "wav s16": {},
    "wav u8": {"codec": "pcm_u8"},
    "wav s24": {"codec": "pcm_s24le"},
    "wav s32": {"codec": "pcm_s32le"},
    "wav f32": {"codec": "pcm_f32le"},
    "wav f64": {"codec": "pcm_f64le"},
    "wav a-law": {"codec": "pcm_alaw"},
    "wav adpcm": {"codec": "adpcm_ms"},
    "w64": {"container": "w64"},
    "aiff": {"codec": "pcm_s16be", "container": "aiff"},
    "au": {"codec": "pcm_s16be", "container": "au"},
    "m4a alac": {"codec": "alac", "container": "ipod"},
    "caf": {"codec": "pcm_s16be", "container": "caf"},
    "flac": {"codec": "flac", "container": "flac"},
    "mp3": {"codec": "libmp3lame", "container": "mp3"},
    "ogg vorbis": {"codec": "vorbis", "container": "ogg", "channels": 2, "options": {"strict": "-2"}},
    "ogg opus": {"codec": "libopus", "container": "ogg", "rate": 48000},
    "ogg flac": {"codec": "flac", "container": "ogg"},
    "m4a aac": {"codec": "aac", "container": "ipod"},
    "adts aac": {"codec": "aac", "container": "adts"},
    "amr": {"codec": "libopencore_amrnb", "container": "amr", "rate": 8000},
    "mp4 aac": {"codec": "aac", "container": "mp4"},
    "mov s16": {"container": "mov"},
    "webm opus": {"codec": "libopus", "container": "webm", "rate": 48000},
    "mkv aac": {"codec": "aac", "container": "matroska"},
    "mkv f32": {"codec": "pcm_f32le", "container": "matroska"},
    "mpeg-ts aac": {"codec": "aac", "container": "mpegts"},
    "avi mp3": {"codec": "libmp3lame", "container": "avi"},
    "asf wma": {"codec": "wmav2", "container": "asf", "options": {"b": "64000"}},
}
_LAYOUTS = {1: "mono", 2: "stereo", 3: "2.1", 4: "quad", 5: "5.0", 6: "5.1", 8: "7.1"}


def make_tone(seconds: float, *, rate: int, hertz: float = 440.0, loudness: float = 0.5) -> np.ndarray:
    """float32 [seconds x rate]: a sine."""
    n = round(seconds * rate)
    return (loudness * np.sin(2 * np.pi * hertz * np.arange(n) / rate)).astype(np.float32)


def find_hertz(samples: np.ndarray, rate: int = 16000) -> float:
    """The loudest frequency in float32 [n], without its first and last tenth, to about 0.1 Hz."""
    middle = samples[len(samples) // 10 : len(samples) * 9 // 10]
    size = 1 << 18
    spectrum = np.abs(np.fft.rfft(middle * np.hanning(len(middle)), size))
    return float(spectrum.argmax() * rate / size)


def encode_sound(
    samples: np.ndarray,
    *,
    rate: int = 44100,
    codec: str = "pcm_s16le",
    container: str = "wav",
    channels: int = 1,
    options: Mapping[str, str] | None = None,
) -> bytes:
    """The bytes of a file whose channels all hold `samples`, float32 [n]; or float32 [channels, n], one row each."""
    rows = np.atleast_2d(samples) if samples.ndim == 2 else np.tile(samples, (channels, 1))
    sink = io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        _add_sound(output, rows, rate, codec, options)
    return sink.getvalue()


def make_talkie(samples: np.ndarray, *, rate: int = 44100, n_frames: int = 30, fps: int = 30) -> bytes:
    """The bytes of an MP4 with numbered frames and a sound, float32 [n]."""
    sink = io.BytesIO()
    with av.open(sink, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 160, 96, "yuv420p"
        sound = output.add_stream("aac", rate=rate, layout="mono")
        assert isinstance(sound, av.AudioStream)
        for i in range(n_frames):
            output.mux(stream.encode(av.VideoFrame.from_ndarray(draw_number(i, 160, 96), format="rgb24")))
        output.mux(stream.encode())
        _encode(output, sound, np.atleast_2d(samples), rate)
    return sink.getvalue()


def make_wav(
    samples: np.ndarray, *, rate: int = 16000, data_bytes: int | None = None, riff_bytes: int | None = None
) -> bytes:
    """A WAV file by hand of int16, uint8, float32 or float64 [n] or [n, channels]; its header may lie about its size.

    Written so, a file may have any rate and any number of channels, which encoders refuse.
    """
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    body = samples.tobytes()
    size = samples.dtype.itemsize
    kind = 3 if samples.dtype.kind == "f" else 1
    form = struct.pack(
        "<HHIIHH", kind, channels, rate, (rate * channels * size) & 0xFFFFFFFF, channels * size, size * 8
    )
    claimed = len(body) if data_bytes is None else data_bytes
    whole = (36 + len(body)) if riff_bytes is None else riff_bytes
    head = b"RIFF" + struct.pack("<I", whole) + b"WAVEfmt " + struct.pack("<I", len(form)) + form
    return head + b"data" + struct.pack("<I", claimed) + body


def _add_sound(
    output: av.container.OutputContainer,
    rows: np.ndarray,
    rate: int,
    codec: str,
    options: Mapping[str, str] | None,
) -> None:
    stream = output.add_stream(codec, rate=rate, layout=_LAYOUTS[len(rows)], options=dict(options or {}))
    assert isinstance(stream, av.AudioStream)
    _encode(output, stream, rows, rate)


def _encode(output: av.container.OutputContainer, stream: av.AudioStream, rows: np.ndarray, rate: int) -> None:
    """Write float32 [channels, n] to a stream and finish it."""
    for start in range(0, rows.shape[1], 4096):
        piece = np.ascontiguousarray(rows[:, start : start + 4096].T).reshape(1, -1)
        frame = av.AudioFrame.from_ndarray(piece, format="flt", layout=_LAYOUTS[len(rows)])
        frame.sample_rate, frame.pts, frame.time_base = rate, start, Fraction(1, rate)
        output.mux(stream.encode(frame))
    output.mux(stream.encode())
