"""Log-mel frames are those of the published extractor, also at the ends of a clip and of its padding."""

import time
import tracemalloc

import numpy as np
import pytest

from tests.tables import each_of
from tokenization.media.mel import MelSpec, log_mel

transformers = pytest.importorskip("transformers")
SECONDS_30 = 30 * 16000
# What the published extractor's float32 arithmetic is off by, where 80 dB lie between the loudest value and another.
FLOAT32 = 2e-4


def make_samples(kind: str, n: int) -> np.ndarray:
    """float32 [n]: noise, a tone, silence that ends in a click, or a loud voice over little noise."""
    rng = np.random.default_rng(n)
    t: np.ndarray = np.arange(n) / 16000
    samples: np.ndarray
    if kind == "noise":
        samples = rng.normal(size=n) * 0.1
    elif kind == "tone":
        samples = 0.5 * np.sin(2 * np.pi * 440 * t)
    elif kind == "click":
        samples = 0.9 * (np.arange(n) == n - 1)
    else:
        samples = 0.3 * np.sin(2 * np.pi * 150 * t) * np.sin(2 * np.pi * 3 * t) + rng.normal(size=n) * 1e-3
    return samples.astype(np.float32)


def ask_reference(samples: np.ndarray, n_mels: int, seconds: int, *, exact: bool) -> np.ndarray:
    """float32 [valid frames, n_mels]; `exact` takes the float64 way that the extractor goes where there is no torch."""
    extractor = transformers.WhisperFeatureExtractor(feature_size=n_mels, chunk_length=seconds)
    features = extractor(samples, sampling_rate=16000, return_attention_mask=True)
    n = int(np.asarray(features["attention_mask"]).sum())
    batch = features["input_features"]
    if exact:
        padded = np.zeros((1, seconds * 16000), np.float32)
        padded[0, : len(samples)] = samples[: seconds * 16000]
        batch = extractor._np_extract_fbank_features(padded, "cpu")
    frames: np.ndarray = np.asarray(batch)[0].T[:n]  # [n, n_mels]
    return frames


@each_of(
    ("kind", "n"),
    [
        *(("noise", n) for n in (1, 100, 160, 161, 199, 200, 201, 16001, 48123)),
        *((kind, n) for kind in ("tone", "click", "voice") for n in (161, 48123)),
    ],
)
def test_frames_are_the_extractors(kind: str, n: int) -> None:
    samples = make_samples(kind, n)
    frames = log_mel(samples, MelSpec())
    assert frames.dtype == np.float32
    assert frames.shape == (-(-n // 160), 128)
    np.testing.assert_allclose(frames, ask_reference(samples, 128, 30, exact=True), atol=1e-6, rtol=0)
    np.testing.assert_allclose(frames, ask_reference(samples, 128, 30, exact=False), atol=FLOAT32, rtol=0)


@each_of("n_mels", [64, 80, 128])
def test_frames_of_other_sizes(n_mels: int) -> None:
    samples = make_samples("noise", 20000)
    frames = log_mel(samples, MelSpec(n_mels=n_mels))
    np.testing.assert_allclose(frames, ask_reference(samples, n_mels, 30, exact=True), atol=1e-6, rtol=0)
    np.testing.assert_allclose(frames, ask_reference(samples, n_mels, 30, exact=False), atol=1e-5, rtol=0)


@each_of("n", [-401, -201, -199, -160, -1, 0, 1, 5000])
def test_frames_at_the_end_of_the_padding(n: int) -> None:
    """There the extractor mirrors the signal instead of seeing zeros, and cuts off what lies beyond."""
    samples = make_samples("noise", SECONDS_30 + n)
    samples[-300:] *= 8
    frames = log_mel(samples, MelSpec(n_mels=80), SECONDS_30)
    np.testing.assert_allclose(frames, ask_reference(samples, 80, 30, exact=True), atol=1e-6, rtol=0)


def test_a_padding_of_five_minutes_is_the_same_as_none() -> None:
    samples = make_samples("noise", 48123)
    frames = log_mel(samples, MelSpec(), 300 * 16000)
    np.testing.assert_array_equal(frames, log_mel(samples, MelSpec()))
    np.testing.assert_allclose(frames, ask_reference(samples, 128, 300, exact=False), atol=1e-5, rtol=0)


def test_the_loudest_value_may_lie_behind_the_valid_frames() -> None:
    """A click at the very end is loudest in a window centred behind it; what is 80 dB below that is cut off."""
    samples = make_samples("noise", 16000) * np.float32(1e-5)
    samples[-1] = 1.0
    frames = log_mel(samples, MelSpec())
    assert (frames[:90] == frames[0, 0]).all()
    np.testing.assert_allclose(frames, ask_reference(samples, 128, 30, exact=True), atol=1e-6, rtol=0)


def test_silence() -> None:
    assert (log_mel(np.zeros(1600, np.float32), MelSpec()) == np.float32(-1.5)).all()


def test_ten_minutes_take_little_memory_and_time() -> None:
    samples = make_samples("noise", 600 * 16000)
    start = time.process_time()
    tracemalloc.start()
    frames = log_mel(samples, MelSpec())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert time.process_time() - start < 20
    assert peak < samples.nbytes + frames.nbytes + (24 << 20)


def test_what_is_no_row_of_samples() -> None:
    for samples in (np.zeros(0, np.float32), np.zeros((2, 100), np.float32)):
        with pytest.raises(ValueError, match="one row and not empty"):
            log_mel(samples, MelSpec())
    with pytest.raises(ValueError, match="more than 200"):
        log_mel(np.zeros(100, np.float32), MelSpec(), 200)
    with pytest.raises(ValueError, match="multiple of 160"):
        log_mel(np.zeros(100, np.float32), MelSpec(), 16100)
