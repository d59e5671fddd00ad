"""Sounds of another rate come to 16 kHz as librosa's loader has it, "soxr_hq", and nothing folds into the band."""

import io
import math

import av
import numpy as np
import soxr

from configs.serve import MediaConfig
from tests.samples.ogg_pages import with_empty_packets
from tests.samples.sounds import encode_sound, make_tone, make_wav
from tests.tables import each_of
from tokenization.media.audio import read_sound

LIMITS = MediaConfig()


def by_librosa(samples: np.ndarray, rate: int) -> np.ndarray:
    """librosa.resample with its defaults: soxr over the whole sound, and a length rounded up (fix=True)."""
    whole = soxr.resample(samples, rate, 16000, quality="HQ")
    n = math.ceil(len(samples) * 16000 / rate)
    return np.pad(whole[:n], (0, max(n - len(whole), 0)))


@each_of("rate", [7, 999, 8000, 11025, 15999, 22050, 24000, 44100, 48000, 96000, 192000, 767999])
def test_another_rate_is_resampled_as_by_the_loader(rate: int) -> None:
    """To the bit, whatever the pieces are that it comes in: a part of a second, and a few samples."""
    noise = np.random.default_rng(rate).normal(0, 0.1, int(rate * 0.7) + 1).astype(np.float32)
    for samples in (noise, noise[:1], noise[:40]):
        np.testing.assert_array_equal(read_sound(make_wav(samples, rate=rate), LIMITS), by_librosa(samples, rate))


def level(samples: np.ndarray) -> float:
    """Decibels against a sine of the same loudness, from the middle."""
    middle = samples[2000:-2000].astype(np.float64)
    return 10 * math.log10(float(np.mean(middle**2)) / (0.5**2 / 2) + 1e-30)


@each_of("rate", [22050, 44100, 48000, 96000])
def test_what_lies_above_the_band_does_not_fold_into_it(rate: int) -> None:
    for hertz in (8100, 8500, 10_000, 15_900, rate * 0.49):
        if 8100 <= hertz < rate / 2:
            tone = make_tone(1.0, rate=rate, hertz=hertz)
            assert level(read_sound(make_wav(tone, rate=rate), LIMITS)) < -90


@each_of("rate", [22050, 44100, 48000, 96000])
def test_the_band_stays_as_it_is(rate: int) -> None:
    for hertz in (50, 440, 3000, 6000, 7000, 7200):
        tone = make_tone(1.0, rate=rate, hertz=hertz)
        assert abs(level(read_sound(make_wav(tone, rate=rate), LIMITS))) < 0.1


@each_of("codec", ["vorbis", "flac"])
def test_empty_packets_of_an_ogg_are_passed_over(codec: str) -> None:
    """As ffmpeg passes them over; to a decoder one is the end of the sound. Without them FFmpeg gives the values."""
    options = {"strict": "-2"} if codec == "vorbis" else {}
    tone = make_tone(6.0, rate=16000, loudness=0.05)
    plain = encode_sound(tone, rate=16000, codec=codec, container="ogg", channels=2, options=options)
    data = with_empty_packets(plain, behind=2)
    assert len(data) > len(plain) + 20
    with av.open(io.BytesIO(plain), "r") as container:
        frames = [frame.to_ndarray().astype(np.float64) for frame in container.decode(audio=0)]
    whole = np.concatenate([f if len(f) == 2 else f.reshape(-1, 2).T for f in frames], axis=1).mean(axis=0)
    scale = 1 if codec == "vorbis" else 1 << 15
    np.testing.assert_allclose(read_sound(data, LIMITS), whole / scale, atol=1e-6)
