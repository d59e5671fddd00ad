"""Jobs with sounds: which tracks are leased, where their words stand, what lies in shared memory."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen2.processor import Qwen2Processor
from model.families.qwen2.qwen2_5_omni import Qwen25OmniProcessor
from model.families.qwen2.qwen2_audio import Qwen2AudioProcessor
from shm import decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.samples.pictures import encoded, photo
from tests.samples.sounds import make_wav
from tests.samples.soundtracks import film, tone
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tiny.qwen2_audio import write_qwen2_audio
from tests.tokenization.worker_harness import WorkerHarness, url, worker_harness_at
from tokenization.media.source import Source
from tokenization.messages import Prepared
from tokenization.processor import Measure, Processor, StageClock

PHOTO, SOUND = url(encoded(photo(120, 90), "JPEG")), url(make_wav(tone(16000)))
TALKIE = {"video": url(film(5, sound=56000)), "use_audio_in_video": True}


@pytest.fixture(scope="module")
def omni_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_qwen2_5_omni(tmp_path_factory.mktemp("omni"))


@pytest.fixture(scope="module")
def omni(omni_path: Path) -> Processor:
    return Qwen25OmniProcessor(Checkpoint(omni_path), 28 * 28 * 1280)


@pytest.fixture
def harness(tmp_path: Path, omni: Processor) -> Iterator[WorkerHarness]:
    with worker_harness_at(tmp_path / "shm", omni) as harness:
        yield harness


def arrays(harness: WorkerHarness, done: Prepared) -> list[np.ndarray]:
    """What the words of each item lead to."""
    found = []
    for item in done.media:
        places = [place for start, length in item.spans for place in range(start, start + length)]
        words = [int(done.input_ids[place]) for place in places[:2]]
        assert max(words) < 0 and (done.input_ids[places[2:]] >= 0).all()
        dtype = np.float32 if item.kind == "audio" else np.uint8
        found.append(
            read_segment(harness.root, decode_shm_name_from_int64(words[0]), decode_shape_from_int64(words[1]), dtype)
        )
    return found


def test_a_sound_lies_in_shared_memory_as_floats(harness: WorkerHarness) -> None:
    done = harness.run([{"text": "a"}, {"audio": SOUND}, {"text": "b"}])
    (measured,) = harness.asked
    assert (measured.nbytes, measured.params, measured.n_tokens) == ((100 * 16 * 4,), ("inputs[1].audio",), (25,))
    (mel,) = arrays(harness, done)
    assert mel.shape == (100, 16) and np.isfinite(mel).all() and mel.std() > 0.05
    (item,) = done.media
    assert (item.kind, item.grid, item.seconds_per_grid) == ("audio", (1, 1, 100), None)
    assert set(done.seconds["audio"]) == {"fetch", "measure", "mel", "write"}


def test_a_video_with_sound_is_two_tracks_of_one_medium(harness: WorkerHarness) -> None:
    done = harness.run([{"image": PHOTO}, TALKIE, {"text": "and"}, {"audio": SOUND}], harness.start(max_items=3))
    (measured,) = harness.asked
    assert measured.params == ("inputs[0].image", "inputs[1].video", "inputs[1].video", "inputs[3].audio")
    assert [item.kind for item in done.media] == ["image", "video", "audio", "audio"]
    assert len(done.media[1].spans) == 3 and len(done.media[2].spans) == 2
    found = arrays(harness, done)
    assert tuple(array.nbytes for array in found) == measured.nbytes
    assert found[2].shape == (350, 16) and len(found[1]) == np.prod(done.media[1].grid)
    assert (done.input_ids < 0).sum() == 8 and done.media[0].size == (120, 90)
    assert np.array_equal(found[3], arrays(harness, done)[3])


def test_without_the_wish_a_video_is_silent(harness: WorkerHarness) -> None:
    for wish in ({}, {"use_audio_in_video": False}):
        done = harness.run([{"video": TALKIE["video"], **wish}])
        harness.end()
        assert [item.kind for item in done.media] == ["video"] and len(done.media[0].spans) == 1


def test_counting_agrees(harness: WorkerHarness) -> None:
    inputs = [TALKIE, {"audio": SOUND}]
    counted = harness.run(inputs, count_only=True)
    assert not harness.asked and (counted.input_ids >= 0).all()
    done = harness.run(inputs)
    assert len(done.input_ids) == len(counted.input_ids) and np.array_equal(done.positions, counted.positions)


def test_the_model_s_length_counts_marks_of_interleaved_sound(harness: WorkerHarness) -> None:
    talkie = {**TALKIE, "total_pixels": 10**6}  # so that it does not give way
    n = len(harness.run([talkie], count_only=True).input_ids)
    assert len(harness.run([talkie], harness.start(n + 1), count_only=True).input_ids) == n
    error = harness.refused([talkie], harness.start(n))
    assert f"the prompt has {n} tokens" in error.message


def test_no_more_sounds_are_decoded_than_the_model_can_take(harness: WorkerHarness) -> None:
    """Each holds 2.5 s, which is 62 tokens; the last one is no sound, which nobody finds out."""
    sounds = [{"audio": url(make_wav(tone(40000, i)))} for i in range(4)]
    error = harness.refused([*sounds, {"audio": url(b"no sound")}], harness.start(150))
    assert "at least" in error.message and "124 of media" in error.message
    error = harness.refused([*sounds[:2], {"audio": url(b"no sound")}], harness.start(1500))
    assert error.param == "inputs[2].audio"


def test_what_is_wrong_with_the_sound_of_a_video(harness: WorkerHarness) -> None:
    silent = harness.refused([{"text": "x"}, {"video": url(film(1, sound=None)), "use_audio_in_video": True}])
    assert silent.param == "inputs[1].video" and "use_audio_in_video" in silent.message
    frames = {"video": [PHOTO, PHOTO], "use_audio_in_video": True}
    listed = harness.refused([frames])
    assert listed.param == "inputs[0].video" and "use_audio_in_video: a list of pictures" in listed.message
    long = harness.refused([TALKIE], harness.start(max_audio_seconds=2.0))
    assert "use_audio_in_video" in long.message and "2 s" in long.message


class Damaged(Qwen25OmniProcessor):
    """Of five grids of a video the first three decode."""

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        array = super().load(source, measure, limits, clock)
        return array[: len(array) // 5 * 3] if measure.kind == "video" and measure.grid[0] == 5 else array


def test_a_damaged_video_is_laid_out_anew_with_all_its_sound(harness: WorkerHarness, omni_path: Path) -> None:
    harness.processor = Damaged(Checkpoint(omni_path), 28 * 28 * 1280)
    done = harness.run([TALKIE, {"text": "x"}])
    first, second = harness.asked
    assert second.n_tokens == (first.n_tokens[0] // 5 * 3, first.n_tokens[1]) and second.nbytes[1] == first.nbytes[1]
    seen, heard = done.media
    assert seen.grid[0] == 3 and len(seen.spans) == 2 and len(heard.spans) == 2
    assert [len(array) for array in arrays(harness, done)] == [first.nbytes[0] // 1176 // 5 * 3, 350]
    assert (done.input_ids < 0).sum() == 4


def test_a_sound_too_short_for_two_words(harness: WorkerHarness) -> None:
    error = harness.refused([{"audio": url(make_wav(tone(900)))}])
    assert error.param == "inputs[0].audio" and "too short" in error.message and "two tokens" in error.message
    assert harness.run([{"audio": url(make_wav(tone(1120)))}]).media[0].spans[0][1] == 2


def test_families_without_ears_say_so_before_a_file_is_opened(harness: WorkerHarness, tiny: Checkpoint) -> None:
    harness.processor = Qwen2Processor(tiny, 28 * 28 * 1280)
    missing = {"video": "/no/such/file.mp4", "use_audio_in_video": True}
    error = harness.refused([missing])
    assert error.param == "inputs[0].video" and "takes no use_audio_in_video" in error.message


def test_a_family_with_ears_alone(harness: WorkerHarness, tmp_path: Path) -> None:
    harness.processor = Qwen2AudioProcessor(Checkpoint(write_qwen2_audio(tmp_path / "sound")), 1 << 20)
    (mel,) = arrays(harness, harness.run([{"audio": SOUND}, {"text": "x"}]))
    assert mel.shape == (102, 16)
