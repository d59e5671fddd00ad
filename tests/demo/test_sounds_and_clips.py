"""The sounds and clips that the demo model learns from are what they say, and survive being made files of."""

import io

import av
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageChops

from demo import clips, encode, recording, sounds
from demo.answers import Direction
from tests.tables import each_of

pytestmark = pytest.mark.slow

Floats = npt.NDArray[np.floating]
DIRECTIONS: tuple[Direction, ...] = ("left", "right", "up", "down")


def loud_stretches(samples: Floats, gap: float = 0.05) -> list[tuple[float, float]]:
    """(start, stop) in seconds of all that is sounding, where less than `gap` seconds of quiet part nothing."""
    loud = np.flatnonzero(np.abs(samples) > 0.01 * np.abs(samples).max())
    breaks = np.flatnonzero(np.diff(loud) > gap * recording.RATE)
    starts, stops = np.append(loud[0], loud[breaks + 1]), np.append(loud[breaks], loud[-1])
    return list(zip((starts / recording.RATE).tolist(), (stops / recording.RATE).tolist(), strict=True))


def lowest_strong(samples: Floats) -> float:
    """Hertz of the lowest frequency that is at least a third as strong as the strongest."""
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples))))
    return float(np.flatnonzero(power > power.max() / 3)[0] * recording.RATE / len(samples))


def centroid(samples: Floats) -> float:
    """The middle of the spectrum in hertz."""
    power = np.abs(np.fft.rfft(samples * np.hanning(len(samples)))) ** 2
    return float((power * np.fft.rfftfreq(len(samples), 1 / recording.RATE)).sum() / power.sum())


def read_sound(data: bytes) -> tuple[npt.NDArray[np.float32], int, int]:
    """Samples [n] at 16 kHz of a file's sound; the file's own rate and channels."""
    with av.open(io.BytesIO(data), "r") as source:
        stream = source.streams.audio[0]
        resampler = av.AudioResampler("flt", "mono", recording.RATE)
        pieces = [piece for frame in (*source.decode(stream), None) for piece in resampler.resample(frame)]
        return np.concatenate([piece.to_ndarray()[0] for piece in pieces]), stream.rate, stream.channels


def middle_of_change(clip: clips.Clip, time: float, ground: Floats) -> tuple[float, float]:
    """x and y of the middle of what differs from the ground at a time."""
    changed = np.abs(np.asarray(clip.frame(time), np.float64) - ground).sum(-1) > 60
    rows, columns = np.nonzero(changed)
    return float(columns.mean()), float(rows.mean())


def test_the_same_seed_gives_the_same_sounds_and_clips() -> None:
    def draw(seed: int) -> tuple[bytes, ...]:
        rng = np.random.default_rng(seed)
        made = [sounds.beeps(rng, 3), sounds.tone(rng, "low"), sounds.sweep(rng, "rising"), sounds.silence(rng)]
        clip = clips.moving(rng, "left")
        return *(recording.worn_sound(rng, each.samples).tobytes() for each in made), clip.frame(0.5).tobytes()

    assert draw(4) == draw(4)
    assert draw(4) != draw(5)


@each_of("seconds", [None, 0.75, 3.0])
@each_of("count", range(1, 7))
def test_as_many_beeps_sound_as_asked_for_and_where_they_are_said_to_be(count: int, seconds: float | None) -> None:
    rng = np.random.default_rng(count)
    for _ in range(40):
        sound = sounds.beeps(rng, count, seconds)
        assert sound.samples.dtype == np.float32 and np.abs(sound.samples).max() <= 1
        assert sound.seconds == seconds if seconds else 0.4 <= sound.seconds <= 6
        heard = loud_stretches(sound.samples)
        assert len(heard) == len(sound.beeps) == count
        np.testing.assert_allclose([a for a, _ in heard], [a for a, _ in sound.beeps], atol=0.012)
        assert all(0.045 <= stop - start <= 1.2 for start, stop in sound.beeps)
        gaps = [after[0] - before[1] for before, after in zip(sound.beeps[:-1], sound.beeps[1:], strict=True)]
        assert all(gap >= 0.079 for gap in gaps)


def test_beeps_that_do_not_fit_are_refused() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="too few"):
        sounds.beeps(rng, 6, 0.5)
    with pytest.raises(ValueError, match="7 beeps"):
        sounds.beeps(rng, 7)


@pytest.mark.parametrize(("pitch", "low", "high"), [("low", 75, 460), ("high", 840, 6100)])
def test_tones_are_as_low_and_high_as_they_say(pitch: sounds.Pitch, low: float, high: float) -> None:
    rng = np.random.default_rng(1)
    for _ in range(80):
        sound = sounds.tone(rng, pitch)
        assert sound.pitch == pitch and sound.beeps == () and 0.4 <= sound.seconds <= 6
        assert low <= sound.hertz <= high
        assert lowest_strong(sound.samples) == pytest.approx(sound.hertz, rel=0.03, abs=5)
        assert len(loud_stretches(sound.samples)) == 1


@pytest.mark.parametrize("direction", ["rising", "falling"])
def test_glides_go_the_way_they_say(direction: sounds.Sweep) -> None:
    rng = np.random.default_rng(2)
    for _ in range(80):
        sound = sounds.sweep(rng, direction)
        start, stop = (round(time * recording.RATE) for time in loud_stretches(sound.samples)[0])
        part = (stop - start) // 6
        first = lowest_strong(sound.samples[start : start + part])
        last = lowest_strong(sound.samples[stop - part : stop])
        assert (last > 1.15 * first) if direction == "rising" else (first > 1.15 * last)


def test_a_sine_glides_by_its_centroid() -> None:
    track = np.geomspace(300, 3000, recording.RATE)
    wave = sounds.voice(track, np.ones(1, np.float32), 0.0)
    assert centroid(wave[:4000]) == pytest.approx(300 * 10**0.125, rel=0.1)
    assert centroid(wave[-4000:]) == pytest.approx(300 * 10**0.875, rel=0.1)


def test_any_sound_has_the_length_asked_for() -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        made = [sounds.tone(rng, "high", 2.0), sounds.sweep(rng, "falling", 2.0), sounds.silence(rng, 2.0)]
        assert [len(sound.samples) for sound in made] == [32000] * 3
        assert made[2].beeps == () and made[2].hertz == 0


def test_wear_keeps_length_and_times_and_stays_in_range() -> None:
    rng = np.random.default_rng(4)
    changed = 0
    for _ in range(60):
        sound = sounds.beeps(rng, 3)
        worn = recording.worn_sound(rng, sound.samples)
        assert worn.shape == sound.samples.shape and worn.dtype == np.float32
        assert np.isfinite(worn).all() and 0 < np.abs(worn).max() <= 1
        inside = np.zeros(len(worn), bool)
        for start, stop in sound.beeps:
            inside[round(start * recording.RATE) : round(stop * recording.RATE)] = True
        level = worn - np.median(worn)
        assert (level[inside] ** 2).mean() > 2 * (level[~inside] ** 2).mean()
        scale = float(np.dot(worn, sound.samples) / np.dot(sound.samples, sound.samples))
        changed += not np.allclose(worn, scale * sound.samples, atol=1e-4)
    assert 20 < changed < 55
    assert np.isfinite(recording.worn_sound(rng, np.zeros(16000, np.float32))).all()


@each_of("direction", DIRECTIONS)
def test_things_move_the_way_they_say(direction: Direction, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    along = 0 if direction in ("left", "right") else 1
    sign = 1 if direction in ("right", "down") else -1
    for _ in range(25):
        clip = clips.moving(rng, direction)
        assert 0.8 <= clip.seconds <= 5 and clip.size[0] % 2 == clip.size[1] % 2 == 0
        with monkeypatch.context() as patch:
            patch.setattr(clips.Path, "at", lambda path, time: (-9999.0, -9999.0))
            ground = np.asarray(clip.frame(0.0), np.float64)
        middles = np.array([middle_of_change(clip, clip.seconds * share, ground) for share in (0.22, 0.5, 0.78)])
        way = (middles[-1] - middles[0]) * sign / clip.size[along]
        assert way[along] > 0.14
        assert abs(way[1 - along]) < 0.3 * way[along]
        assert (np.diff(middles[:, along]) * sign > 0).all()


def test_a_clip_answers_at_any_time_in_the_size_asked_for() -> None:
    clip = clips.moving(np.random.default_rng(6), "up", size=(201, 120), seconds=2.0)
    late, early, again = clip.frame(1.9), clip.frame(0.0), clip.frame(1.9)
    assert clip.size == late.size == (200, 120) and late.mode == "RGB" and clip.seconds == 2.0
    assert ImageChops.difference(late, again).getbbox() is None
    assert ImageChops.difference(late, early).getbbox() is not None
    assert clip.frame(99.0).size == clip.size


@each_of("format", encode.SOUND_FORMATS)
@each_of(("rate", "channels"), [(8000, 1), (44100, 2), (48000, 1)])
def test_sounds_come_back_out_of_every_format(format: str, rate: int, channels: int) -> None:
    track = np.concatenate([np.zeros(4000), np.full(12000, 700.0), np.zeros(4000)])
    samples = (0.5 * np.sin(2 * np.pi * np.cumsum(track) / recording.RATE)).astype(np.float32)
    found, its_rate, its_channels = read_sound(encode.encode_sound(samples, rate, format, channels=channels))
    assert abs(len(found) - len(samples)) < 0.06 * recording.RATE
    assert its_rate == (48000 if "opus" in format else rate)
    assert its_channels == (2 if "vorbis" in format else channels)
    assert lowest_strong(found) == pytest.approx(700, rel=0.02)
    start, stop = loud_stretches(np.where(np.abs(found) > 0.1, found, 0))[0]
    assert start == pytest.approx(0.25, abs=0.04) and stop == pytest.approx(1.0, abs=0.04)
    assert np.abs(found).max() == pytest.approx(0.5, rel=0.25)


@each_of("format", encode.CLIP_FORMATS)
@each_of("with_sound", [False, True])
def test_clips_come_back_out_of_every_format(format: str, with_sound: bool) -> None:
    rng = np.random.default_rng(7)
    clip = clips.moving(rng, "right", size=(160, 120), seconds=1.5)
    sound = sounds.tone(rng, "low", 1.5) if with_sound else None
    if format == "gif" and sound is not None:
        with pytest.raises(ValueError, match="no sound"):
            encode.encode_clip(clip, 10, format, sound=sound)
        return
    data = encode.encode_clip(clip, 10, format, sound=sound)
    with av.open(io.BytesIO(data), "r") as source:
        assert len(source.streams.audio) == int(with_sound)
        frames = [frame.to_ndarray(format="rgb24") for frame in source.decode(source.streams.video[0])]
    assert len(frames) == 15
    for i in (0, 7, 14):
        wanted = np.asarray(clip.frame(i / 10).convert("RGB"), np.float64)
        assert np.abs(frames[i] - wanted).mean() < 8
    if sound is not None:
        found, _, _ = read_sound(data)
        assert len(found) / recording.RATE == pytest.approx(1.5, abs=0.1)
        assert lowest_strong(found) == pytest.approx(sound.hertz, rel=0.03, abs=5)


def test_a_gif_plays_as_long_as_its_clip() -> None:
    clip = clips.moving(np.random.default_rng(8), "down", seconds=2.0)
    with Image.open(io.BytesIO(encode.encode_clip(clip, 10, "gif"))) as image:
        total = 0
        for i in range(getattr(image, "n_frames", 1)):
            image.seek(i)
            total += image.info["duration"]
    assert total == 2000
