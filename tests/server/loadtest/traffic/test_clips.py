"""Videos and sounds of the length and size that were asked for, which the server's own decoders open."""

import io
import wave

import av
import numpy as np
import pytest

from server.loadtest.traffic.clips import FRAMES_A_SECOND, SAMPLES_A_SECOND, sound, video


def test_a_video_has_its_size_its_length_and_motion() -> None:
    with av.open(io.BytesIO(video(np.random.default_rng(0), 1.5, 97, 64)), "r") as container:
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    assert len(frames) == round(1.5 * FRAMES_A_SECOND)
    assert frames[0].shape == (64, 96), "sides are even"
    assert np.abs(frames[0].astype(int) - frames[-1].astype(int)).mean() > 5


def test_a_sound_has_its_length_and_is_heard() -> None:
    content = sound(np.random.default_rng(0), 0.75)
    with wave.open(io.BytesIO(content)) as reader:
        samples = np.frombuffer(reader.readframes(reader.getnframes()), "<i2") / 32_768
        assert (reader.getframerate(), reader.getnchannels()) == (SAMPLES_A_SECOND, 1)
    assert len(samples) == 12_000
    assert 0.02 < np.sqrt((samples**2).mean()) < 0.5 and np.abs(samples).max() <= 1


def test_a_seed_gives_the_same_sound() -> None:
    first, again, other = (sound(np.random.default_rng(seed), 0.1) for seed in (1, 1, 2))
    assert first == again != other
    assert video(np.random.default_rng(1), 0.2, 32, 32) == video(np.random.default_rng(1), 0.2, 32, 32)


@pytest.mark.parametrize("seconds", [0.05, 0.1])
def test_the_shortest_video_has_two_frames(seconds: float) -> None:
    with av.open(io.BytesIO(video(np.random.default_rng(0), seconds, 32, 32)), "r") as container:
        assert len(list(container.decode(video=0))) == 2
