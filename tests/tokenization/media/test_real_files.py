"""Real pictures, films and sounds, by package name (tests/published/real_files.py): values, not only statuses.

Right are Pillow's pixels, FFmpeg's frames from the first packet on, and soundfile's samples as librosa resamples them.
"""

import contextlib
import importlib
import io
import sys
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soxr
from PIL import Image, ImageOps

from configs.serve import MediaConfig
from tests.e2e.running import REPO
from tokenization.chat.errors import ChatError
from tokenization.media.audio import read_sound
from tokenization.media.image import decode_rgb
from tokenization.media.video_frames import read_frames
from tokenization.media.video_probe import probe

pytestmark = [pytest.mark.long]

FILES = REPO / "build" / "real_files"
LIMITS = MediaConfig(max_audio_seconds=600)
MOST_PIXELS = 1 << 27
PICTURES = {".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"}
SOUNDS = {".wav", ".mp3", ".flac", ".ogg", ".oga", ".opus", ".m4a", ".aac", ".aiff", ".aif", ".wma"}
FILMS = {".avi", ".mp4", ".mov", ".mkv", ".webm", ".mpeg", ".mpg", ".ts", ".gif"}


def files(suffixes: set[str]) -> list[Path]:
    found = sorted(path for path in FILES.rglob("*") if path.suffix.lower() in suffixes)
    if not found:
        pytest.skip("no index could be reached")
    return found


class Table:
    """What was found of each file, by one word; what is wrong, or refused here alone, is named."""

    def __init__(self, what: str) -> None:
        self.what, self.counts, self.wrong = what, Counter[str](), dict[str, str]()

    def note(self, path: Path, word: str, why: object = "") -> None:
        self.counts[word] += 1
        if word in ("wrong", "refused"):
            self.wrong[path.name] = f"{word}: {why}"

    def check(self, least: int, refused: set[str]) -> None:
        """refused: names of those that are refused here, and why is known."""
        print(f"{self.what}: {dict(self.counts)}")
        assert {name: why for name, why in self.wrong.items() if name not in refused} == {}
        assert sum(self.counts.values()) >= least


def by_pillow(path: Path) -> np.ndarray | None:
    """uint8 [h, w, 3], upright, over white; None where Pillow reads no picture."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(io.BytesIO(path.read_bytes())) as image:
                image.load()
                return _rgb(ImageOps.exif_transpose(image))
        except Exception:  # noqa: BLE001 - many of these files are broken on purpose
            return None


def _rgb(image: Image.Image) -> np.ndarray:
    if image.mode.startswith("I;16"):
        values, key = np.asarray(image), image.info.get("transparency", -1)
        grey = np.where(values == key, 255, values >> 8).astype(np.uint8)  # docs/adr/0026
        return np.repeat(grey[:, :, None], 3, axis=2)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return np.asarray(image.convert("RGB"))


def test_pictures_are_those_of_pillow() -> None:
    table = Table("pictures")
    for path in files(PICTURES):
        expected = by_pillow(path)
        try:
            found = np.asarray(decode_rgb(path.read_bytes(), max_source_pixels=MOST_PIXELS))
        except ChatError as error:
            table.note(path, "refused by both" if expected is None else "refused", error.message)
            continue
        if expected is None:
            table.note(path, "wrong", "Pillow reads none")
        elif found.shape != expected.shape:
            table.note(path, "wrong", f"{found.shape}, Pillow {expected.shape}")
        else:
            apart = int(np.abs(found.astype(int) - expected).max(initial=0))
            table.note(path, "right" if apart <= 1 else "wrong", f"differs by {apart}")
    table.check(300, set())


def plain_frames(path: Path, size: tuple[int, int], most: int) -> list[np.ndarray]:
    """The first frames that FFmpeg's decoder gives, uint8 [h, w, 3] of a size (w, h)."""
    with av.open(path, metadata_errors="ignore") as container:
        frames = islice(container.decode(video=0), most)
        return [
            np.asarray(Image.fromarray(frame.to_ndarray(format="rgb24")).resize(size, Image.Resampling.BICUBIC))
            for frame in frames
        ]


def test_frames_are_those_of_the_decoder() -> None:
    table = Table("films")
    for path in files(FILMS):
        data = path.read_bytes()
        try:
            expected = plain_frames(path, (56, 56), 60)
        except (av.FFmpegError, IndexError):  # no container, or no video in it
            expected = []
        try:
            info = probe(data, LIMITS)
            frames, got = read_frames(data, info, list(range(min(info.n_frames, 60))), (56, 56), LIMITS)
        except ChatError as error:
            table.note(path, "refused" if expected else "refused by both", error.message)
            continue
        if not expected:
            table.note(path, "not judged")  # its first packet is broken, and the decoder stops there
            continue
        apart = [float(np.abs(a.astype(int) - b).mean()) for a, b in zip(frames, expected, strict=False)]
        right = list(got) == list(range(len(expected))) and max(apart, default=99) < 6  # resized by another filter
        table.note(
            path, "right" if right else "wrong", f"{info.n_frames} frames, {len(expected)}, {max(apart, default=0)}"
        )
    table.check(30, set())


def by_soundfile(soundfile: Any, path: Path) -> np.ndarray | None:
    """float32 [n] at 16 kHz as librosa.load gives it; None where libsndfile reads none."""
    try:
        samples, rate = soundfile.read(str(path), dtype="float32", always_2d=True)
    except (soundfile.LibsndfileError, ValueError):
        return None
    return at_16_khz(samples.T, rate)


def by_ffmpeg(path: Path) -> np.ndarray:
    """The same of the samples that FFmpeg's decoder gives from the first packet on."""
    with av.open(path, metadata_errors="ignore") as container:
        frames = []
        for packet in container.demux(audio=0):
            with contextlib.suppress(av.FFmpegError):  # a damaged part, as players pass it over
                frames += packet.decode()
    pieces = []
    for frame in frames:
        piece = frame.to_ndarray()
        scale = 1.0 if piece.dtype.kind == "f" else 2.0 ** (8 * piece.dtype.itemsize - 1)
        flat = piece if frame.format.is_planar else piece.reshape(-1, frame.layout.nb_channels).T
        pieces.append(flat.astype(np.float32) / scale)
    return at_16_khz(np.concatenate(pieces, axis=1), frames[0].sample_rate)


def at_16_khz(samples: np.ndarray, rate: int) -> np.ndarray:
    mono = samples.mean(axis=0) if len(samples) > 1 else samples[0]
    return np.asarray(mono if rate == 16000 else soxr.resample(mono, rate, 16000, quality="HQ"))


def same(found: np.ndarray, expected: np.ndarray, seconds: float = 0.0) -> bool:
    """seconds: by which their ends may differ."""
    n = min(len(found), len(expected))
    apart = float(np.abs(found[:n] - expected[:n]).max(initial=0))
    return apart < 5e-3 and abs(len(found) - len(expected)) <= 2 + 16000 * seconds  # ADPCM rounds otherwise by 4e-3


def test_sounds_are_those_of_soundfile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or, where libsndfile has another decoder (Opus, MP3 with a damaged part), those of FFmpeg's."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(FILES / "judge")])
    paths = files(SOUNDS)
    soundfile = importlib.import_module("soundfile")
    table = Table("sounds")
    for path in paths:
        expected = by_soundfile(soundfile, path)
        try:
            found = read_sound(path.read_bytes(), LIMITS)
        except ChatError as error:
            table.note(path, "refused by both" if expected is None else "refused", error.message)
            continue
        if expected is not None and same(found, expected):
            table.note(path, "right")
        elif expected is not None and same(found, expected, seconds=0.05):
            table.note(path, "right, with another end")  # FFmpeg's: up to 35 ms of an MP3's or a Vorbis's last packet
        else:
            table.note(path, "as FFmpeg has it" if same(found, by_ffmpeg(path)) else "wrong")
    table.check(60, {"audacity_lena-gsm.aiff"})  # GSM: docs/api.md
