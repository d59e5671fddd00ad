"""Samples become the log-mel frames that Whisper-style encoders take.

Frames are centred at every `hop`-th sample from 0: Hann window, power, triangles on the Slaney mel scale, log10, cut
off 80 dB below the loudest value, (x + 4) / 4. All is float64 up to log10; published extractors use float32.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

CONTEXT_FRAMES = 2
"""Frames after the last valid one that still reach an encoder which convolves a whole padded sound (kernels 3 and 3,
the second with stride 2) and hides the padding only afterwards. Their windows may hold the sound's last samples, so
they cannot be guessed from the valid frames."""

_FLOOR = 1e-10  # power below it is silence
_RANGE = 8.0  # decades of power below the loudest value that are told apart
_BLOCK = 1024  # frames in work at once: 3 MB a step, so that a long sound takes no more than a short one
_MEL_LINEAR = 200 / 3  # Hz per mel below 1 kHz
_MEL_BREAK = 1000.0  # Hz; above it the scale is logarithmic
_MEL_LOG = math.log(6.4) / 27  # of a mel above it


@dataclass(frozen=True, slots=True, kw_only=True)
class MelSpec:
    """How an extractor was set up, as in preprocessor_config.json."""

    n_mels: int = 128  # feature_size
    n_fft: int = 400  # samples in a window
    hop: int = 160  # samples from one frame to the next
    rate: int = 16000  # samples per second


def log_mel(samples: np.ndarray, spec: MelSpec, length: int | None = None, context: int = 0) -> np.ndarray:
    """float32 [ceil(n / hop) + context, n_mels] of `samples`, float32 [n], mono at `spec.rate`.

    The frames are those of an extractor that pads to `length` samples, without the padding's own: zeros follow the
    samples, what lies beyond `length` is cut off (n is then `length`), and windows over either end see the signal
    mirrored. None: zeros follow without end. `context` frames of padding follow, all zeros after `length`. Raises
    ValueError for `samples` that are no row or a `length` that is no whole number of hops above half a window.
    """
    if samples.ndim != 1 or not len(samples):
        raise ValueError(f"samples must be one row and not empty, got {samples.shape}")
    half = spec.n_fft // 2
    if length is not None and length <= half:
        raise ValueError(f"length must be more than {half} samples, got {length}")
    if length is not None and length % spec.hop:
        raise ValueError(f"length must be a multiple of {spec.hop} samples, got {length}")
    signal = samples if length is None else samples[:length]
    n = -(-len(signal) // spec.hop)
    # Windows centred after the last sample still reach back to it and may hold the loudest value of the sound.
    n_all = n + max(context, -(-half // spec.hop))
    if length is not None:
        n_all = min(n_all, length // spec.hop)
    padded = _pad(signal, n_all, spec, length)
    windows = np.lib.stride_tricks.sliding_window_view(padded, spec.n_fft)[:: spec.hop]  # [>= n_all, n_fft]
    window = _hann(spec.n_fft)
    filters = _mel_filters(spec)
    kept = min(n + context, n_all)
    out = np.zeros((n + context, spec.n_mels), np.float32)
    loudest = math.log10(_FLOOR)
    for start in range(0, n_all, _BLOCK):
        stop = min(start + _BLOCK, n_all)
        spectrum = np.fft.rfft(windows[start:stop] * window)  # [frames, n_fft / 2 + 1]
        power = spectrum.real**2 + spectrum.imag**2
        log = np.log10(np.maximum(power @ filters, _FLOOR))  # [frames, n_mels]
        loudest = max(loudest, float(log.max()))
        if start < kept:
            out[start : min(stop, kept)] = log[: kept - start]
    found = out[:kept]
    np.maximum(found, np.float32(loudest - _RANGE), out=found)
    found += np.float32(4)
    found /= np.float32(4)
    return out


# ---- details


def _pad(signal: np.ndarray, n_frames: int, spec: MelSpec, length: int | None) -> np.ndarray:
    """float32 [(n_frames - 1) * hop + n_fft]: half a window of mirrored signal, the signal, then what follows it."""
    half = spec.n_fft // 2
    total = (n_frames - 1) * spec.hop + spec.n_fft
    padded = np.zeros(total, np.float32)
    body = signal[: total - half]
    padded[half : half + len(body)] = body
    head = signal[1 : half + 1]
    padded[half - len(head) : half] = head[::-1]
    if length is None or half + length >= total:
        return padded
    end = half + length  # the first place after the padding length: mirrored, without repeating the last sample
    over = total - end
    padded[end:] = padded[end - 1 - over : end - 1][::-1]
    return padded


@lru_cache(maxsize=8)
def _hann(n: int) -> np.ndarray:
    """float64 [n], periodic."""
    return 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n)


@lru_cache(maxsize=8)
def _mel_filters(spec: MelSpec) -> np.ndarray:
    """float64 [n_fft / 2 + 1, n_mels]: triangles of equal area, evenly spread over 0 .. rate / 2 on the mel scale."""
    top = spec.rate / 2
    bins = np.linspace(0, top, spec.n_fft // 2 + 1)
    mels = np.linspace(0, _to_mel(top), spec.n_mels + 2)
    linear = mels * _MEL_LINEAR
    knee = _MEL_BREAK / _MEL_LINEAR
    corners = np.where(mels < knee, linear, _MEL_BREAK * np.exp((mels - knee) * _MEL_LOG))  # Hz, [n_mels + 2]
    low, peak, high = corners[:-2], corners[1:-1], corners[2:]
    rising = (bins[:, None] - low) / (peak - low)
    falling = (high - bins[:, None]) / (high - peak)
    triangles: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * (2 / (high - low))
    return triangles


def _to_mel(hertz: float) -> float:
    if hertz < _MEL_BREAK:
        return hertz / _MEL_LINEAR
    return _MEL_BREAK / _MEL_LINEAR + math.log(hertz / _MEL_BREAK) / _MEL_LOG
