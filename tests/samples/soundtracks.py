"""What models that hear are tested with: sounds, films with sound, and a vocabulary with the tags of boxes."""

import io
from pathlib import Path

import av
import numpy as np
from tokenizers import AddedToken, Tokenizer

from tests.samples.videos import draw_number
from tokenization.chat.boxes import TAGS


def tone(n: int, seed: int = 0) -> np.ndarray:
    """int16 [n]: a chord with some noise, at 16 kHz."""
    rng = np.random.default_rng(seed)
    time = np.arange(n) / 16000
    chord = np.sin(2 * np.pi * rng.uniform(100, 4000, (3, 1)) * time).sum(axis=0)
    return np.asarray((chord * 0.2 + rng.standard_normal(n) * 0.01) * 20000, np.int16)


def add_tags(path: Path, *, special: bool = False) -> None:
    """Give the checkpoint at `path` the tags of boxes as added tokens."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(tag, special=special, normalized=False) for tag in TAGS])
    tokenizer.save(str(path / "tokenizer.json"))


def film(seconds: float, *, sound: int | None, size: tuple[int, int] = (56, 84), rate: int = 8) -> bytes:
    """The bytes of a Matroska clip with `sound` samples of uncompressed sound; None: it has no sound track."""
    height, width = size
    sink = io.BytesIO()
    with av.open(sink, "w", format="matroska") as output:
        video = output.add_stream("ffv1", rate=rate)
        assert isinstance(video, av.VideoStream)
        video.width, video.height, video.pix_fmt = width, height, "yuv420p"
        audio = None if sound is None else output.add_stream("pcm_s16le", rate=16000, layout="mono")
        for i in range(round(seconds * rate)):
            output.mux(video.encode(av.VideoFrame.from_ndarray(draw_number(i, width, height), format="rgb24")))
        output.mux(video.encode())
        if sound is not None:
            assert isinstance(audio, av.AudioStream)
            frame = av.AudioFrame.from_ndarray(tone(sound)[None], format="s16", layout="mono")
            frame.sample_rate = 16000
            output.mux(audio.encode(frame))
            output.mux(audio.encode())
    return sink.getvalue()
