"""Sounds in five timbres: some beeps, one high or low tone, a tone that rises or falls; as WAV, 16 bit mono."""

import io
import wave
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

TIMBRES = ("sine", "triangle", "square", "organ", "telephone")
_HARMONICS = {
    "sine": ((1, 1.0),),
    "triangle": ((1, 1.0), (3, 1 / 9), (5, 1 / 25), (7, 1 / 49)),
    "square": ((1, 1.0), (3, 1 / 3), (5, 1 / 5), (7, 1 / 7)),
    "organ": ((1, 1.0), (2, 0.5), (3, 0.25), (4, 0.15)),
    "telephone": ((1, 1.0), (2, 0.3)),
}
Samples = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tone:
    """A stretch of sound: seconds, and its pitch in hertz at both ends; silence where that is 0."""

    seconds: float
    first: float = 0.0
    last: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """Tones one after another. detail: the seed of the noise behind them."""

    tones: tuple[Tone, ...]
    timbre: str
    rate: int
    loudness: float
    detail: int


def beeps(n: int, timbre: str, rng: np.random.Generator) -> Sound:
    """`n` equal beeps with equal pauses."""
    pitch, long, pause = rng.uniform(450, 1400), rng.uniform(0.12, 0.28), rng.uniform(0.16, 0.4)
    one = Tone(seconds=float(long), first=float(pitch), last=float(pitch))
    tones = [Tone(seconds=float(rng.uniform(0.1, 0.4)))]
    for _ in range(n):
        tones += [one, Tone(seconds=float(pause))]
    return _sound(tones, timbre, rng)


def steady(pitch: str, timbre: str, rng: np.random.Generator) -> Sound:
    """One tone: low is 110 to 240 Hz, high is 1,000 to 2,400 Hz."""
    hertz = float(rng.uniform(110, 240) if pitch == "low" else rng.uniform(1000, 2400))
    length = float(rng.uniform(0.7, 1.8))
    return _sound([Tone(seconds=0.1), Tone(seconds=length, first=hertz, last=hertz), Tone(seconds=0.15)], timbre, rng)


def glide(way: str, timbre: str, rng: np.random.Generator) -> Sound:
    """A tone that rises or falls by seven tenths of an octave to one and a half."""
    low = float(rng.uniform(220, 600))
    high = low * float(2 ** rng.uniform(0.7, 1.5))
    first, last = (low, high) if way == "rise" else (high, low)
    length = float(rng.uniform(0.8, 2.0))
    return _sound([Tone(seconds=0.1), Tone(seconds=length, first=first, last=last), Tone(seconds=0.15)], timbre, rng)


def _sound(tones: list[Tone], timbre: str, rng: np.random.Generator) -> Sound:
    rate = 8000 if timbre == "telephone" else (16_000, 22_050, 44_100)[int(rng.integers(3))]
    loudness, detail = float(rng.uniform(0.2, 0.7)), int(rng.integers(2**31))
    return Sound(tones=tuple(tones), timbre=timbre, rate=rate, loudness=loudness, detail=detail)


def encoded(sound: Sound) -> tuple[str, bytes]:
    """The media type and the bytes of a file."""
    rng = np.random.default_rng(sound.detail)
    whole = np.concatenate([_samples(tone, sound) for tone in sound.tones])
    whole /= np.abs(whole).max()
    whole = whole * sound.loudness + rng.normal(0, 0.012 if sound.timbre == "telephone" else 0.003, len(whole))
    if sound.timbre == "telephone":
        whole = np.round(whole * 127) / 127
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(sound.rate)
        written.writeframes((np.clip(whole, -1, 1) * 32_767).astype("<i2").tobytes())
    return "audio/wav", file.getvalue()


def _samples(tone: Tone, sound: Sound) -> Samples:
    n = round(tone.seconds * sound.rate)
    if not tone.first:
        return np.zeros(n)
    pitch = np.geomspace(tone.first, tone.last, n)
    phase = 2 * np.pi * np.cumsum(pitch) / sound.rate
    found = np.zeros(n)
    for times, amount in _HARMONICS[sound.timbre]:
        found += np.where(pitch * times < sound.rate / 2, amount * np.sin(phase * times), 0.0)
    edge = min(n // 4, round(0.015 * sound.rate))
    ramp = np.ones(n)
    ramp[:edge] = np.linspace(0, 1, edge)
    ramp[n - edge :] = np.linspace(1, 0, edge)
    return found * ramp
