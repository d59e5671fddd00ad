"""Files of sounds and clips as people have them: WAV, MP3, MP4, GIF and so on.

No AV1: its usual encoder, SVT-AV1, gives a root process real-time priority, which starves everything else.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from types import MappingProxyType

import av
import numpy as np
from PIL import Image

from demo.clips import Clip
from demo.recording import RATE, Samples
from demo.sounds import Sound


@dataclass(frozen=True, slots=True, kw_only=True)
class Coding:
    """A container and a codec in it. `rates`: what the codec takes, any if empty; `channels`: if it takes no others."""

    container: str
    codec: str
    rates: tuple[int, ...] = ()
    channels: int | None = None
    pixels: str = "yuv420p"
    options: Mapping[str, str] = field(default_factory=dict)


MP3_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
SOUND_CODINGS = MappingProxyType(
    {
        "wav": Coding(container="wav", codec="pcm_s16le"),
        "wav u8": Coding(container="wav", codec="pcm_u8"),
        "wav float": Coding(container="wav", codec="pcm_f32le"),
        "flac": Coding(container="flac", codec="flac"),
        "mp3": Coding(container="mp3", codec="libmp3lame", rates=MP3_RATES),
        "ogg opus": Coding(container="ogg", codec="libopus", rates=OPUS_RATES),
        # FFmpeg's own Vorbis encoder, which is there where libvorbis is not, takes two channels only.
        "ogg vorbis": Coding(container="ogg", codec="vorbis", channels=2, options={"strict": "experimental"}),
        "m4a": Coding(container="ipod", codec="aac", rates=MP3_RATES),
    }
)
X264 = {"preset": "veryfast", "crf": "24"}
VP9 = {"deadline": "realtime", "cpu-used": "8", "crf": "34", "b": "0"}
VP8 = {"deadline": "realtime", "cpu-used": "8", "crf": "12", "b": "1M"}
CLIP_CODINGS = MappingProxyType(
    {
        "mp4 h264": Coding(container="mp4", codec="libx264", options=X264),
        "mp4 mpeg4": Coding(container="mp4", codec="mpeg4", options={"q": "4", "b": "1M"}),
        "webm vp9": Coding(container="webm", codec="libvpx-vp9", options=VP9),
        "webm vp8": Coding(container="webm", codec="libvpx", options=VP8),
        "avi mjpeg": Coding(container="avi", codec="mjpeg", pixels="yuvj420p", options={"q": "4", "b": "4M"}),
        "gif": Coding(container="gif", codec="gif"),
    }
)
SOUND_FORMATS = tuple(SOUND_CODINGS)
CLIP_FORMATS = tuple(CLIP_CODINGS)
TRACKS = MappingProxyType({"mp4": ("aac", 44100), "webm": ("libopus", 48000), "avi": ("libmp3lame", 44100)})


def add_sound(output: av.container.OutputContainer, coding: Coding, rate: int, channels: int) -> av.AudioStream:
    """A new sound track of `rate` hertz, or of the next higher rate that the codec takes."""
    if coding.rates:
        rate = next((each for each in coding.rates if each >= rate), coding.rates[-1])
    layout = "stereo" if (coding.channels or channels) == 2 else "mono"
    stream = output.add_stream(coding.codec, rate=rate, options=dict(coding.options))
    assert isinstance(stream, av.AudioStream)
    stream.layout = layout
    return stream


def write_sound(output: av.container.OutputContainer, stream: av.AudioStream, samples: Samples) -> None:
    """Encode all of `samples` [n] at 16 kHz into the track, resampled to what it takes."""
    context = stream.codec_context
    context.open(strict=False)
    resampler = av.AudioResampler(context.format, context.layout, context.sample_rate, context.frame_size or None)
    frame = av.AudioFrame.from_ndarray(np.clip(samples, -1, 1)[None].astype(np.float32), format="flt", layout="mono")
    frame.sample_rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
    for piece in (*resampler.resample(frame), *resampler.resample(None)):
        output.mux(stream.encode(piece))
    output.mux(stream.encode(None))


def encode_sound(samples: Samples, rate: int, format: str, *, channels: int = 1) -> bytes:
    """A file of `samples` [n] (float32, 16 kHz) in one of SOUND_FORMATS at `rate` hertz, 8000 to 48000.

    MP3, Opus and AAC take the next higher of their rates. KeyError: no such format.
    """
    coding = SOUND_CODINGS[format]
    sink = io.BytesIO()
    with av.open(sink, "w", format=coding.container) as output:
        write_sound(output, add_sound(output, coding, rate, channels), samples)
    return sink.getvalue()


def draw_gif(clip: Clip, times: list[float], fps: float) -> bytes:
    """An animated GIF that plays over and over."""
    frames = [clip.frame(time).quantize(128, dither=Image.Dither.NONE) for time in times]
    sink = io.BytesIO()
    frames[0].save(sink, "GIF", save_all=True, append_images=frames[1:], duration=10 * max(2, round(100 / fps)), loop=0)
    return sink.getvalue()


def encode_clip(clip: Clip, fps: float, codec: str, *, sound: Sound | None = None, channels: int = 1) -> bytes:
    """A file of the clip in one of CLIP_FORMATS at `fps` frames a second, with a sound track if there is a `sound`.

    KeyError: no such format. ValueError: sound in a GIF.
    """
    coding = CLIP_CODINGS[codec]
    times = [i / fps for i in range(max(1, round(clip.seconds * fps)))]
    if coding.container == "gif":
        if sound is not None:
            raise ValueError("a GIF has no sound")
        return draw_gif(clip, times, fps)
    sink = io.BytesIO()
    rate = Fraction(fps).limit_denominator(1001)
    with av.open(sink, "w", format=coding.container) as output:
        stream = output.add_stream(coding.codec, rate=rate, options=dict(coding.options))
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = clip.size
        stream.pix_fmt = coding.pixels
        stream.codec_context.thread_count = 1
        track = None
        if sound is not None:
            name, hertz = TRACKS[coding.container]
            track = add_sound(output, Coding(container=coding.container, codec=name), hertz, channels)
        for i, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(np.asarray(clip.frame(time)), format="rgb24")
            frame.pts, frame.time_base = i, 1 / rate
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if sound is not None and track is not None:
            write_sound(output, track, sound.samples)
    return sink.getvalue()
