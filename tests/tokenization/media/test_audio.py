"""Sounds of every format, rate and number of channels come out at 16 kHz with their pitch, length and loudness."""

import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.samples.sounds import SOUND_KINDS, encode_sound, find_hertz, make_talkie, make_tone, make_wav
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.media.audio import read_sound

LIMITS = MediaConfig()
# Containers that do not say how much silence a codec put around the sound; blocks of a fixed size, too.
PADDED = ("adts aac", "amr", "mpeg-ts aac", "avi mp3", "asf wma", "wav adpcm", "m4a aac", "mp4 aac", "mkv aac")
# LAME itself takes 5 % off, AMR is made for speech.
LOUDNESS = {"mp3": 0.475, "avi mp3": 0.475, "amr": 0.43}
RATES = (8000, 11025, 22050, 44100, 48000)


def measure_loudness(samples: np.ndarray) -> float:
    """What `make_tone` was given: the amplitude of a sine, from its middle."""
    middle = samples[len(samples) // 8 : -len(samples) // 8].astype(np.float64)
    return float(np.sqrt(2 * np.mean(middle**2)))


def check_tone(samples: np.ndarray, kind: str, seconds: float) -> None:
    assert samples.dtype == np.float32
    assert samples.ndim == 1
    assert find_hertz(samples) == pytest.approx(440, abs=0.2)
    assert measure_loudness(samples) == pytest.approx(LOUDNESS.get(kind, 0.5), rel=0.02)
    slack = 0.2 if kind in PADDED else 0.006 if kind == "ogg vorbis" else 0.001
    assert len(samples) / 16000 == pytest.approx(seconds, abs=slack)


@each_of("kind", SOUND_KINDS)
def test_every_format(kind: str) -> None:
    options = {"rate": 44100, **SOUND_KINDS[kind]}
    data = encode_sound(make_tone(1.0, rate=options["rate"]), **options)
    check_tone(read_sound(data, LIMITS), kind, 1.0)


@each_of("rate", RATES)
@each_of("kind", ["wav s16", "flac", "mp3", "ogg vorbis", "mp4 aac"])
def test_every_rate(kind: str, rate: int) -> None:
    data = encode_sound(make_tone(1.0, rate=rate), **{**SOUND_KINDS[kind], "rate": rate})
    check_tone(read_sound(data, LIMITS), kind, 1.0)


@each_of("kind", ["mp3", "ogg opus", "mp4 aac", "webm opus", "mkv aac"])
def test_the_silence_that_a_codec_puts_in_front_is_cut_off(kind: str) -> None:
    """The tone begins where it began, to a fifth of a millisecond: less would be heard as another phase."""
    options = {"rate": 44100, **SOUND_KINDS[kind]}
    samples = read_sound(encode_sound(make_tone(1.0, rate=options["rate"], hertz=100), **options), LIMITS)
    wanted = make_tone(1.0, rate=16000, hertz=100)
    fits = [float(samples[4000 + lag : 12000 + lag] @ wanted[4000:12000]) for lag in range(-79, 80)]
    assert abs(int(np.argmax(fits)) - 79) <= 3


@each_of("rate", [1, 7, 50, 999, 15999, 16000, 16001, 96000, 192000, 384000, 767999])
def test_rates_that_nobody_expects(rate: int) -> None:
    samples = np.zeros(0, np.float32)
    for n in (1, 3, 40, 500):
        samples = read_sound(make_wav(np.full(n, 1 << 14, np.int16), rate=rate), LIMITS)
        assert len(samples) == -(-n * 16000 // rate)
        assert np.abs(samples).max() < 0.7
    middle = samples[len(samples) // 3 : len(samples) * 2 // 3]
    if len(middle) > 10:
        assert float(middle.mean()) == pytest.approx(0.5, abs=0.01)


@each_of("channels", [1, 2, 3, 6, 8, 9, 33, 64])
def test_channels_are_averaged(channels: int) -> None:
    samples = np.zeros((1600, channels), np.int16)
    samples[:, -1] = 1 << 14
    expected = np.full(1600, 0.5 / channels)
    np.testing.assert_allclose(read_sound(make_wav(samples), LIMITS), expected, atol=1e-6)


@each_of("codec", ["aac", "libopus", "flac", "pcm_f32le"])
@each_of("channels", [2, 6, 8])
def test_channels_of_codecs_that_keep_them_apart(codec: str, channels: int) -> None:
    """More than seven planes are more than PyAV can tell apart; it reads beyond the last one."""
    tone = make_tone(1.0, rate=48000)
    data = encode_sound(tone, rate=48000, codec=codec, container="matroska", channels=channels)
    samples = read_sound(data, LIMITS)
    assert find_hertz(samples) == pytest.approx(440, abs=0.2)
    assert len(samples) == pytest.approx(16000, abs=400)
    # Lossy codecs treat the bass channel their own way.
    assert measure_loudness(samples) == pytest.approx(0.5, rel=0.2 if codec in ("aac", "libopus") else 0.001)


@each_of(("dtype", "zero", "half"), [(np.uint8, 128, 192), (np.int16, 0, 1 << 14), (np.int32, 0, 1 << 30)])
def test_whole_numbers_are_scaled(dtype: type, zero: int, half: int) -> None:
    samples: np.ndarray = np.array([zero, half] * 100, dtype)
    np.testing.assert_array_equal(read_sound(make_wav(samples), LIMITS), np.tile([0, 0.5], 100))


def test_sounds_at_16_khz_stay_as_they_are() -> None:
    tone = make_tone(0.5, rate=16000)
    np.testing.assert_array_equal(read_sound(make_wav(tone), LIMITS), tone)
    loud = np.array([2.0, -3.0] * 50, np.float32)
    np.testing.assert_array_equal(read_sound(make_wav(loud), LIMITS), loud)


def test_the_sound_of_a_video() -> None:
    check_tone(read_sound(make_talkie(make_tone(1.0, rate=44100)), LIMITS), "mp4 aac", 1.0)


def test_silence_is_a_sound() -> None:
    assert not read_sound(make_wav(np.zeros(800, np.int16)), LIMITS).any()


def test_joined_files_of_two_rates() -> None:
    """As a radio stream that changes programmes: each part keeps its own pitch and length."""
    low = encode_sound(make_tone(1.0, rate=16000, hertz=200), rate=16000, codec="aac", container="adts")
    high = encode_sound(make_tone(1.0, rate=48000, hertz=900), rate=48000, codec="aac", container="adts")
    samples = read_sound(low + high, LIMITS)
    assert len(samples) == pytest.approx(32000, abs=4000)
    assert find_hertz(samples[:14000]) == pytest.approx(200, abs=0.5)
    assert find_hertz(samples[-14000:]) == pytest.approx(900, abs=0.5)


# ---- limits


@each_of("kind", ["wav s16", "flac", "mp3", "ogg opus", "mp4 aac", "webm opus", "adts aac"])
def test_a_sound_that_is_too_long(kind: str) -> None:
    options = {"rate": 8000, **SOUND_KINDS[kind]}
    data = encode_sound(np.zeros(options["rate"] * 4, np.float32), **options)
    message = r"^the sound lasts more than the allowed 3 s: [45] s, as its file says$"
    with pytest.raises(ChatError, match=message) as caught:
        read_sound(data, MediaConfig(max_audio_seconds=3))
    assert caught.value.param is None
    assert len(read_sound(data, MediaConfig(max_audio_seconds=5))) >= 64000


def test_silence_before_an_opus_is_not_counted() -> None:
    """Its header counts 6.5 ms of it."""
    data = encode_sound(np.zeros(3 * 48000, np.float32), rate=48000, codec="libopus", container="ogg")
    assert len(read_sound(data, MediaConfig(max_audio_seconds=3))) == 48000


def test_a_sound_of_just_the_allowed_length() -> None:
    data = encode_sound(np.zeros(3 * 44100, np.float32), codec="flac", container="flac")
    assert len(read_sound(data, MediaConfig(max_audio_seconds=3))) == 48000
