"""Sounds that a small model learns to hear by: counted beeps, high and low tones, glides, and nothing but noise.

All are float32 mono at 16 kHz. `encode` makes files of these, and `recording.worn_sound` what a microphone in a room
would have heard.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from demo.recording import RATE, Samples, noise

Pitch = Literal["high", "low"]
Sweep = Literal["rising", "falling"]

SHORTEST, LONGEST = 0.4, 6.0  # seconds of a whole sound
MOST_BEEPS = 6
MIN_BEEP, MIN_GAP = 0.05, 0.08  # seconds
LOW, HIGH = (80.0, 450.0), (850.0, 6000.0)  # hertz of low and of high tones
GLIDE = (120.0, 6000.0)  # hertz between which glides run
BEEP = (250.0, 4000.0)
ROUND_HERTZ = (
    100,
    120,
    150,
    200,
    220,
    250,
    261.6,
    300,
    400,
    440,
    500,
    600,
    700,
    750,
    800,
    880,
    900,
    1000,
    1046.5,
    1200,
)
ROUND_HERTZ_HIGH = (1500, 1760, 1800, 2000, 2093, 2400, 2500, 2800, 3000, 3136, 3500, 4000, 4186, 5000, 6000)
ROUND_SECONDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # what people type
CEILING = 7600.0  # hertz; harmonics above it are left out, so that nothing folds back
TABLE = 4096  # points of one period of a wave
HARMONICS = 40
SINE = np.sin(2 * np.pi * np.arange(TABLE) / TABLE).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sound:
    """A sound and what is true of it: `beeps` are (start, stop) in seconds, empty where the sound is of another kind.

    `hertz`: of the tone or of the highest beep; of a glide the geometric mean of its ends; 0 where nothing sounds.
    """

    samples: Samples
    beeps: tuple[tuple[float, float], ...] = ()
    pitch: Pitch | None = None
    sweep: Sweep | None = None
    hertz: float = 0.0

    @property
    def seconds(self) -> float:
        """How long the whole is, silence at its ends included."""
        return len(self.samples) / RATE


def log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """A number between the two, each octave as likely as the next."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def pick_hertz(rng: np.random.Generator, low: float, high: float) -> float:
    """A frequency in the range; two in five are the round numbers that people choose."""
    if rng.random() < 0.4:
        return float(rng.choice([each for each in (*ROUND_HERTZ, *ROUND_HERTZ_HIGH) if low <= each <= high]))
    return log_uniform(rng, low, high)


def timbre(rng: np.random.Generator) -> Samples:
    """How loud each harmonic is: [harmonics]. Sine, square, triangle, saw, a few harmonics, or an organ's many."""
    kind = rng.choice(6, p=(0.48, 0.14, 0.1, 0.1, 0.1, 0.08))
    order = np.arange(1, HARMONICS + 1)
    if kind == 0:
        return np.ones(1, np.float32)
    if kind == 1:
        loud = np.where(order % 2, 1 / order, 0)
    elif kind == 2:
        loud = np.where(order % 2, np.where(order % 4 == 1, 1, -1) / order**2, 0)
    elif kind == 3:
        loud = 1 / order
    elif kind == 4:
        loud = np.array([1.0, rng.uniform(0.1, 0.7), rng.uniform(0, 0.4)])
    else:
        loud = np.append(1.0, rng.uniform(0, 0.8, 7)) / order[:8] ** 0.7
    return loud.astype(np.float32)


def voice(hertz: npt.NDArray[np.float64], loud: Samples, turn: float) -> Samples:
    """A wave of peak 1, [n], whose frequency at each sample is `hertz` [n] and whose harmonics are `loud` [harmonics];
    `turn` of 0 to 1 is where in its period it starts."""
    place = ((np.cumsum(hertz) / RATE + turn) * TABLE).astype(np.int64)
    low, high = float(hertz.min()), float(hertz.max())
    loud = loud[: max(1, int(CEILING / low))]
    if high > 1.2 * low:  # each harmonic ends where it passes the ceiling, and fades on the way
        total = np.zeros(len(hertz), np.float32)
        for order, each in enumerate(loud[:8], 1):
            if each:
                fade = np.clip((CEILING - order * hertz) / 1000, 0, 1) if order > 1 else 1.0
                total += each * fade * SINE[order * place & (TABLE - 1)]
    else:
        loud = loud[: max(1, int(CEILING / high))]
        table = np.zeros(TABLE, np.float32)
        for order, each in enumerate(loud, 1):
            if each:
                table += each * SINE[order * np.arange(TABLE) & (TABLE - 1)]
        total = table[place & (TABLE - 1)]
    return total / np.float32(np.abs(total).max() + 1e-6)


def ramp(samples: Samples, seconds: float) -> Samples:
    """The same with its first and last `seconds` faded, at most half of it each."""
    n = min(int(seconds * RATE), len(samples) // 2)
    if n > 1:
        slope = (0.5 - 0.5 * np.cos(np.linspace(0, np.pi, n))).astype(np.float32)
        samples[:n] *= slope
        samples[-n:] *= slope[::-1]
    return samples


def placed(content: Samples, start: int, n: int) -> Samples:
    """`content` from sample `start` on in a silence of `n`."""
    whole = np.zeros(n, np.float32)
    whole[start : start + len(content)] = content
    return whole


def room(rng: np.random.Generator, content: float, seconds: float | None) -> tuple[float, float]:
    """Silence before `content` seconds of sound, and the seconds of the whole, which are `seconds` where given."""
    if seconds is not None:
        spare = max(0.0, seconds - content)
        lead = 0.0 if rng.random() < 0.25 else rng.uniform(0, min(spare, 1.0))
        return (spare if rng.random() < 0.1 and spare < 1 else min(lead, spare)), seconds
    lead = 0.0 if rng.random() < 0.3 else rng.uniform(0, 0.9)
    trail = 0.0 if rng.random() < 0.3 else rng.uniform(0, 0.9)
    total = min(max(lead + content + trail, SHORTEST), LONGEST)
    return min(lead, max(0.0, total - content)), total


def check(seconds: float | None, least: float) -> float:
    """The most seconds there are for a sound's content; ValueError if they are fewer than `least`."""
    most = LONGEST if seconds is None else seconds
    if most < least:
        raise ValueError(f"{most} seconds are too few for this sound, which needs {least:.2f}")
    return most


def shortest(count: int) -> float:
    """Seconds that so many beeps need at least."""
    return count * MIN_BEEP + (count - 1) * MIN_GAP


def time_scale(
    rng: np.random.Generator, count: int, most: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Seconds of every beep [count] and of every gap [count - 1], together at most `most`."""

    def length(low: float, high: float) -> float:
        if rng.random() < 0.4:
            return float(rng.choice([each for each in ROUND_SECONDS if each >= low]))
        return log_uniform(rng, low, high)

    if rng.random() < 0.75:  # regular
        beep, gap = length(MIN_BEEP, 0.5), length(MIN_GAP, 0.7)
        if rng.random() < 0.06:
            beep = gap = 1.0 if rng.random() < 0.5 else 0.75  # slow ones
        lengths, gaps = np.full(count, beep), np.full(count - 1, gap)
        if rng.random() < 0.3:  # by hand
            lengths *= rng.uniform(0.85, 1.15, count)
            gaps *= rng.uniform(0.85, 1.15, count - 1)
    else:
        lengths = np.array([length(MIN_BEEP, 0.5) for _ in range(count)])
        gaps = np.array([length(MIN_GAP, 0.7) for _ in range(count - 1)])
    lengths, gaps = np.maximum(lengths, MIN_BEEP), np.maximum(gaps, MIN_GAP)
    extra, least = lengths.sum() + gaps.sum() - shortest(count), shortest(count)
    if least + extra > most:  # what is above the least shrinks, the least stays
        share = (most - least) / extra
        lengths, gaps = MIN_BEEP + (lengths - MIN_BEEP) * share, MIN_GAP + (gaps - MIN_GAP) * share
    return lengths, gaps


def beeps(rng: np.random.Generator, count: int, seconds: float | None = None) -> Sound:
    """`count` (1 to 6) beeps of 50 ms and more with at least 80 ms between them, in `seconds` if given.

    Raises ValueError where the beeps do not fit: `shortest(count)` seconds, at most 0.7, always do.
    """
    if not 1 <= count <= MOST_BEEPS:
        raise ValueError(f"{count} beeps; 1 to {MOST_BEEPS} are possible")
    lengths, gaps = time_scale(rng, count, check(seconds, shortest(count)) - 0.002)
    first = pick_hertz(rng, *BEEP)
    second = first
    if rng.random() < 0.15:
        second = float(np.clip(first * log_uniform(rng, 0.6, 1.6), *BEEP))
    highest = max(first, second) if count > 1 else first
    loud, turn = timbre(rng), float(rng.choice((0.0, rng.random())))
    edge = rng.choice((0.0, log_uniform(rng, 0.002, 0.02)), p=(0.25, 0.75))
    decay = rng.uniform(0.2, 0.6) if rng.random() < 0.2 else 0.0  # a bell's, as a share of the beep
    uneven = rng.random() < 0.2
    lead, total = room(rng, float(lengths.sum() + gaps.sum()) + 0.001, seconds)
    samples = np.zeros(round(total * RATE), np.float32)
    spans, at = [], lead
    for i, length in enumerate(lengths):
        start, n = round(at * RATE), round(float(length) * RATE)
        one = voice(np.full(n, second if i % 2 else first), loud, turn)
        if decay:
            one *= np.exp(-np.arange(n) / (decay * n)).astype(np.float32)
        one = ramp(one, float(edge)) * np.float32(rng.uniform(0.6, 1.0) if uneven else 1.0)
        samples[start : start + n] = one[: len(samples) - start]
        spans.append((start / RATE, min(start + n, len(samples)) / RATE))
        at += float(length) + (float(gaps[i]) if i < count - 1 else 0.0)
    return Sound(samples=samples * np.float32(rng.uniform(0.3, 0.95)), beeps=tuple(spans), hertz=highest)


def duration(rng: np.random.Generator, low: float, high: float, most: float) -> float:
    """Seconds of one tone: mostly any, sometimes a round half second or second, sometimes all there is room for."""
    if rng.random() < 0.15 and low <= most <= high:
        return most
    length = float(rng.choice((0.5, 1.0, 1.5, 2.0, 3.0))) if rng.random() < 0.3 else rng.uniform(low, high)
    return min(max(length, low), most)


def tone(rng: np.random.Generator, pitch: Pitch, seconds: float | None = None) -> Sound:
    """One steady tone of 0.3 to 3 s, low (80 to 450 Hz) or high (850 to 6000 Hz), silence round it or none."""
    length = duration(rng, 0.3, 3.0, check(seconds, 0.3))
    if seconds is not None and rng.random() < 0.3:
        length = min(seconds, LONGEST)  # it fills the whole
    hertz = pick_hertz(rng, *(LOW if pitch == "low" else HIGH))
    n = round(length * RATE)
    track = np.full(n, hertz)
    if rng.random() < 0.2:
        beat = 2 * np.pi * rng.uniform(3, 7) * np.arange(n) / RATE
        track *= 1 + rng.uniform(0.002, 0.015) * np.sin(beat)
    one = voice(track, timbre(rng), rng.random())
    shape = rng.random()
    if shape < 0.15:
        one *= np.exp(-np.arange(n) / (rng.uniform(0.3, 0.8) * n)).astype(np.float32)
    elif shape < 0.25:
        one *= np.linspace(rng.uniform(0.2, 1), rng.uniform(0.2, 1), n, dtype=np.float32)
    one = ramp(one, float(rng.choice((0.0, rng.uniform(0.002, 0.05), rng.uniform(0.05, 0.2)))))
    lead, total = room(rng, length, seconds)
    whole = placed(one[: round(total * RATE) - round(lead * RATE)], round(lead * RATE), round(total * RATE))
    return Sound(samples=whole * np.float32(rng.uniform(0.3, 0.95)), pitch=pitch, hertz=hertz)


def sweep(rng: np.random.Generator, direction: Sweep, seconds: float | None = None) -> Sound:
    """One glide of 0.4 to 3 s over half an octave to four octaves, or a scale of 4 to 8 steps without gaps."""
    length = duration(rng, 0.4, 3.0, check(seconds, 0.4))
    octaves = rng.uniform(0.5, 4.0) if rng.random() < 0.5 else rng.uniform(1.0, 3.0)
    bottom = log_uniform(rng, GLIDE[0], GLIDE[1] / 2**octaves)
    top = bottom * 2**octaves
    n = round(length * RATE)
    way = np.linspace(0, 1, n)
    manner = rng.random()
    if manner < 0.25:
        steps = int(rng.integers(4, 9))
        way = np.minimum((way * steps).astype(np.int64), steps - 1) / (steps - 1)
    elif manner < 0.35:
        way = way * way * (3 - 2 * way)  # slow at both ends
    if direction == "falling":
        way = 1 - way
    track = bottom + (top - bottom) * way if rng.random() < 0.5 else bottom * 2 ** (octaves * way)
    one = ramp(voice(track, timbre(rng), rng.random()), float(rng.choice((0.0, rng.uniform(0.002, 0.05)))))
    lead, total = room(rng, length, seconds)
    whole = placed(one[: round(total * RATE) - round(lead * RATE)], round(lead * RATE), round(total * RATE))
    return Sound(
        samples=whole * np.float32(rng.uniform(0.3, 0.95)), sweep=direction, hertz=float(np.sqrt(bottom * top))
    )


def silence(rng: np.random.Generator, seconds: float | None = None) -> Sound:
    """No beep at all: zeros, or nothing but noise."""
    n = round((rng.uniform(SHORTEST, 4.5) if seconds is None else seconds) * RATE)
    if rng.random() < 0.4:
        return Sound(samples=np.zeros(n, np.float32))
    return Sound(samples=noise(rng, n) * np.float32(10 ** (rng.uniform(-60, -15) / 20)))
