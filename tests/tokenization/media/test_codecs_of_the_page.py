"""docs/api.md says which codecs are read: every encoder that the library has writes a file, and it is or it is not."""

import io
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from configs.serve import MediaConfig
from tokenization.chat.errors import ChatError
from tokenization.media.audio import read_sound
from tokenization.media.video_probe import probe

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
LIMITS = MediaConfig()
CONTAINERS = ("matroska", "mov", "avi", "asf", "ogg", "mpegts", "flv", "gif", "wav", "aiff", "caf", "au", "w64", "amr")
# Of devices that are not here, and what is no codec; the rest of an encoder's names is that of its codec.
NO_CODECS = re.compile(
    r"_(amf|nvenc|qsv|v4l2m2m|vaapi|vulkan|mf|cuvid|d3d12va)$|^(a64|wrapped|vnull|anull|s302m|dfpwm)"
)
SIZE = {"h261": (176, 144), "h263": (176, 144), "h263p": (176, 144), "dvvideo": (720, 576), "dnxhd": (1920, 1080)}


def listed(name: str) -> set[str]:
    part = PAGE.split(f"<!-- {name}: written by `make docs` -->")[1].split(f"<!-- end of {name} -->")[0]
    return set(re.findall(r"`(\w+)`", part.split("- decoders:")[1]))


def encoders(kind: str) -> list[str]:
    found = []
    for name in sorted(av.codecs_available):
        try:
            codec = av.Codec(name, "w")
        except (av.codec.codec.UnknownCodecError, ValueError):
            continue
        if codec.type == kind and not NO_CODECS.search(name):
            found.append(name)
    return found


def written(name: str, container: str) -> bytes:
    """A few frames, or a fifth of a second. Raises where the codec does not go into the container."""
    codec, sink = av.Codec(name, "w"), io.BytesIO()
    with av.open(sink, "w", format=container) as output:
        stream = output.add_stream(name, rate=25 if codec.type == "video" else (codec.audio_rates or [16000])[-1])
        stream.options = {"strict": "-2"}
        assert isinstance(stream, av.VideoStream | av.AudioStream)
        for frame in pictures(codec, stream) if isinstance(stream, av.VideoStream) else tones(codec, stream):
            output.mux(stream.encode(frame))  # type: ignore[arg-type]  # of its own kind
        output.mux(stream.encode())
    return sink.getvalue()


def pictures(codec: av.Codec, stream: av.VideoStream) -> Iterator[av.VideoFrame]:
    stream.width, stream.height = SIZE.get(codec.name, (64, 64))
    stream.pix_fmt = codec.video_formats[0].name if codec.video_formats else "yuv420p"
    picture = np.full((stream.height, stream.width, 3), 90, np.uint8)
    for number in range(4):
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=stream.pix_fmt)
        frame.pts, frame.time_base = number, Fraction(1, 25)
        yield frame


def tones(codec: av.Codec, stream: av.AudioStream) -> Iterator[av.AudioFrame]:
    stream.layout = "mono"
    form = codec.audio_formats[0].name if codec.audio_formats else "s16"
    resampler = av.AudioResampler(format=form, layout="mono", rate=stream.rate)
    tone = av.AudioFrame.from_ndarray(np.full((1, stream.rate // 5), 900, np.int16), "s16", "mono")
    tone.sample_rate = stream.rate
    yield from resampler.resample(tone)


def decoder_of(data: bytes, kind: str) -> str | None:
    """FFmpeg's own choice; None where it finds no such stream or no decoder."""
    with av.open(io.BytesIO(data), "r") as container:
        streams = container.streams.video if kind == "video" else container.streams.audio
        context = streams[0].codec_context if streams else None
        return context.name if context is not None and context.is_decoder else None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["video", "audio"])
def test_what_the_page_lists_is_read_and_nothing_else(kind: str) -> None:
    allowed = listed("video codecs" if kind == "video" else "sound codecs")
    read, refused, wrong = set(), set(), []
    for name in encoders(kind):
        for container in CONTAINERS:
            try:
                data = written(name, container)
                decoder = decoder_of(data, kind)
            except (av.FFmpegError, ValueError, TypeError, NotImplementedError):
                continue
            if decoder is None:
                continue
            try:
                probe(data, LIMITS) if kind == "video" else read_sound(data, LIMITS)
                read.add(decoder)
            except ChatError as error:
                refused.add(decoder)
                if decoder in allowed:
                    wrong.append((decoder, container, error.message))
            if decoder in read and decoder not in allowed:
                wrong.append((decoder, container, "read"))
            break
    assert not wrong
    assert len(read) >= 20 and len(refused) >= 8, (sorted(read), sorted(refused))
