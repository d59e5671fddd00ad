"""What rooms, microphones, lines and cheap files do to a sound."""

import numpy as np
import numpy.typing as npt

Samples = npt.NDArray[np.float32]  # [n], -1 to 1, at RATE
RATE = 16000
QUIET = 0.1  # root mean square that noise is measured against where nothing sounds


def padded(n: int) -> int:
    """A length of at least `n` that Fourier transforms are quick on."""
    return n + -n % 1000


def noise(rng: np.random.Generator, n: int) -> Samples:
    """White, pink or the mains' hum, of root mean square 1: [n]."""
    kind = rng.choice(3, p=(0.45, 0.4, 0.15))
    white = rng.standard_normal(n, dtype=np.float32)
    if kind == 0:
        return white
    if kind == 1:
        wave = np.fft.rfft(white, padded(n))
        rising = np.maximum(np.arange(len(wave)), 20 * padded(n) / RATE)  # no louder below 20 Hz
        pink = np.fft.irfft(wave / np.sqrt(rising), padded(n))[:n]
        return np.asarray(pink / (pink.std() + 1e-9), np.float32)
    phase = 2 * np.pi * float(rng.choice((50, 60))) / RATE * np.arange(n, dtype=np.float32)
    hum = np.sin(phase) + rng.random() * np.sin(2 * phase) + rng.random() * np.sin(3 * phase)
    return np.asarray(hum / (hum.std() + 1e-9) + 0.1 * white, np.float32)


def carried(rng: np.random.Generator, samples: Samples) -> Samples:
    """The sound as a line or a loudspeaker carries it: without the highest, or, as a telephone, also the lowest."""
    size = padded(len(samples) + RATE // 10)
    wave = np.fft.rfft(samples, size)
    hertz = np.arange(len(wave)) * (RATE / size)
    kind = rng.random()
    pass_to = rng.uniform(3000, 3600) if kind < 0.4 else rng.uniform(3000, 7500)
    wave = wave / (1 + (hertz / pass_to) ** 4)  # gentle: a tone above stays to be heard
    if kind < 0.6:
        pass_from = rng.uniform(250, 400) if kind < 0.4 else rng.uniform(40, 250)
        wave = wave * (hertz / pass_from) ** 2 / (1 + (hertz / pass_from) ** 2)
    return np.fft.irfft(wave, size)[: len(samples)].astype(np.float32)


def echoed(rng: np.random.Generator, samples: Samples) -> Samples:
    """The sound in a room: a few echoes within 60 ms, or a short tail that falls by 60 dB in 0.1 to 0.35 s."""
    if rng.random() < 0.5:
        heard = samples.copy()
        for _ in range(int(rng.integers(1, 4))):
            late = int(rng.uniform(0.005, 0.06) * RATE)
            heard[late:] += samples[: len(samples) - late] * np.float32(rng.uniform(0.05, 0.3))
        return heard
    n = int(rng.uniform(0.1, 0.35) * RATE)
    tail = rng.standard_normal(n, dtype=np.float32) * np.exp(-6.9 / n * np.arange(n, dtype=np.float32))
    tail *= np.float32(rng.uniform(0.1, 0.5)) / np.sqrt((tail**2).sum())
    tail[0] += 1
    size = padded(len(samples) + n)
    return np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(tail, size), size)[: len(samples)].astype(np.float32)


def worn_sound(rng: np.random.Generator, samples: Samples) -> Samples:
    """What a recording of `samples` [n] may be: filtered, echoing, noisy, clipped, coarse and quieter, in the same
    length and at the same times. A third stays as it was but for its loudness."""
    heard = samples.astype(np.float32)
    sounding = np.abs(heard) > 0.1 * np.abs(heard).max()
    level = float(np.sqrt(np.mean(heard[sounding] ** 2))) if sounding.any() else 0.0
    if rng.random() < 0.67:
        if rng.random() < 0.35:
            heard = carried(rng, heard)
        if rng.random() < 0.3:
            heard = echoed(rng, heard)
        if rng.random() < 0.7:
            share = 10 ** (-rng.uniform(10, 50) / 20)
            heard = heard + noise(rng, len(heard)) * np.float32(share * (level if level > 1e-3 else QUIET))
        if rng.random() < 0.15:
            heard = heard + np.float32(rng.uniform(-0.05, 0.05))
        most = float(np.abs(heard).max())
        if rng.random() < 0.1 and most > 0:
            heard = np.clip(heard, -most * rng.uniform(0.5, 0.95), most * rng.uniform(0.5, 0.95))
        if rng.random() < 0.1:
            heard = np.asarray(np.round(np.clip(heard, -1, 1) * 127) / 127, np.float32)
    most = float(np.abs(heard).max())
    gain = 10 ** (-rng.uniform(0, 30) / 20) / max(most, 1.0)
    return np.asarray(np.clip(heard * np.float32(gain), -1, 1), np.float32)
