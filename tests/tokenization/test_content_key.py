"""Content keys: every fact that decides what a medium becomes is in them, and nothing else; what a kept one costs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.registry import family_of
from shm import WordError, decode_shm_name_from_int64
from tests.samples.damaged_videos import mjpeg_clip
from tests.samples.pictures import encoded, photo
from tests.samples.soundtracks import film
from tests.samples.videos import make_clip
from tests.tables import each_of
from tests.tiny.families import NAMES, WRITERS
from tests.tiny.qwen2_5_omni import write_qwen2_5_omni
from tests.tokenization.worker_harness import WorkerHarness, url, worker_harness_at
from tokenization.chat.options import MediaOptions
from tokenization.content_key import constants_of, content_key, source_digest
from tokenization.media.source import Source
from tokenization.media.video_plan import VideoPlan
from tokenization.messages import Prepared
from tokenization.processor import Measure, MediaHandler, StageClock

FEW = {"max_pixels": 28 * 28 * 8, "min_pixels": 3136}
LARGE = url(encoded(photo(900, 600), "JPEG"))


class Handler(MediaHandler):
    """Stands for one family's; `constant` for what a checkpoint's file says."""

    def __init__(self, constant: object) -> None:
        self.origin, self.constant = "somewhere", constant

    def measure(self, source: Source, limits: MediaConfig) -> Measure:
        raise NotImplementedError

    def largest(self, limits: MediaConfig, max_tokens: int) -> Measure | None:
        return None

    def load(self, source: Source, measure: Measure, limits: MediaConfig, clock: StageClock) -> np.ndarray:
        raise NotImplementedError


class OtherHandler(Handler):
    """Reads the same otherwise: another filter, say."""


PLAN = VideoPlan(indices=(0, 2), seconds_per_grid=1.0, fps=2.0, size=(28, 56), info=None)
VIDEO = Measure(kind="video", grid=(1, 2, 4), shape=(8, 1176), n_tokens=2, video=PLAN)
SOUND = Measure(kind="audio", grid=(1, 1, 3), shape=(3, 8), n_tokens=2, sound=np.zeros(480, np.float32))
SOURCE = Source(kind="video", param="", data=b"bytes")


def key(
    measure: Measure = VIDEO, *, source: Source = SOURCE, salt: bytes = b"salt", handler: MediaHandler | None = None
) -> bytes:
    return content_key(salt, source_digest(source), handler or Handler(1), measure)


# Each differs from its partner in one fact alone.
PARTS: dict[str, tuple[bytes, bytes]] = {
    "salt": (key(), key(salt=b"other")),
    "bytes": (key(), key(source=replace(SOURCE, data=b"other"))),
    "bytes of a list": (
        key(source=replace(SOURCE, data=b"", frames=(b"ab", b"c"))),
        key(source=replace(SOURCE, data=b"", frames=(b"a", b"bc"))),
    ),
    "a list is no file": (
        key(source=replace(SOURCE, data=b"", frames=(b"",))),
        key(source=replace(SOURCE, data=(0).to_bytes(8, "little"))),
    ),
    "constants": (key(), key(handler=Handler(2))),
    "class": (key(), key(handler=OtherHandler(1))),
    "kind": (key(), key(replace(VIDEO, kind="image"))),
    "grid": (key(), key(replace(VIDEO, grid=(1, 4, 2)))),
    "shape": (key(), key(replace(VIDEO, shape=(8, 588)))),
    "dtype": (key(), key(replace(VIDEO, dtype="float32"))),
    "tokens": (key(), key(replace(VIDEO, n_tokens=4))),
    "delimiters": (key(), key(replace(VIDEO, n_delimiters=1))),
    "sound of a video": (key(SOUND), key(replace(SOUND, of_video=True))),
    "resize target": (key(), key(replace(VIDEO, resized=(20, 50)))),
    "samples": (key(SOUND), key(replace(SOUND, sound=np.zeros(479, np.float32)))),
    "frames": (key(), key(replace(VIDEO, video=replace(PLAN, indices=(0, 3))))),
    "seconds of a grid": (key(), key(replace(VIDEO, video=replace(PLAN, seconds_per_grid=2.0)))),
    "size of frames": (key(), key(replace(VIDEO, video=replace(PLAN, size=(56, 28))))),
}


@each_of("part", PARTS)
def test_each_fact_is_a_part_of_the_key(part: str) -> None:
    one, other = PARTS[part]
    assert len(one) == len(other) == 32 and one != other


def test_nothing_else_is() -> None:
    same = replace(SOURCE, param="messages[1]", options=MediaOptions(fps=3.0))
    assert key(source=same) == key() == key(replace(VIDEO, size=(3, 4)))


@each_of("name", NAMES)
def test_constants_are_values(tmp_path: Path, name: str) -> None:
    """The same in each process that serves a checkpoint: no object is named by where it lies."""
    checkpoint = Checkpoint(WRITERS[name](tmp_path / name))
    first, second = (family_of(checkpoint).processor(checkpoint, 28 * 28 * 1280) for _ in range(2))
    for kind, handler in first.handlers.items():
        assert constants_of(handler) == constants_of(second.handlers[kind])
        assert " at 0x" not in constants_of(handler)


# ---- over whole jobs


@pytest.fixture
def harness(tmp_path: Path, tiny: Checkpoint) -> Iterator[WorkerHarness]:
    with worker_harness_at(tmp_path / "shm", family_of(tiny).processor(tiny, 28 * 28 * 1280)) as harness:
        harness.salt = b"s" * 32
        yield harness


def keys_of(harness: WorkerHarness, *inputs: Any, max_model_len: int = 4096, **limits: Any) -> tuple[bytes, ...]:
    harness.end()
    done = harness.run([*inputs, {"text": "x"}], harness.start(max_model_len, **limits))
    keys = tuple(item.key for item in done.media)
    assert harness.asked[-1].keys == keys
    return keys


def test_a_key_is_what_was_read_not_where(harness: WorkerHarness, tmp_path: Path) -> None:
    paths = [tmp_path / "one.jpg", tmp_path / "two.bin"]
    for path in paths:
        path.write_bytes(encoded(photo(900, 600), "JPEG"))
    found = {keys_of(harness, {"image": str(path)}, roots=(tmp_path,)) for path in paths}
    assert found == {keys_of(harness, {"image": LARGE})}
    paths[0].write_bytes(encoded(photo(900, 600, 1), "JPEG"))
    assert keys_of(harness, {"image": str(paths[0])}, roots=(tmp_path,)) not in found
    harness.salt = b"t" * 32
    assert keys_of(harness, {"image": LARGE}) not in found
    harness.salt = b""
    assert harness.run([{"image": LARGE}, {"text": "x"}]).media[0].key == b"" and harness.asked[-1].keys == ()


def test_the_same_picture_at_another_size_is_another_one(harness: WorkerHarness) -> None:
    (plain,) = keys_of(harness, {"image": LARGE})
    assert keys_of(harness, {"image": LARGE, "detail": "high"}) == (plain,), "nothing changed"
    others = [
        keys_of(harness, {"image": LARGE, **options})
        for options in ({"max_pixels": 28 * 28 * 100}, {"detail": "low"}, {"min_pixels": 28 * 28 * 1000})
    ]
    assert len({(plain,), *others}) == 4
    twice = keys_of(harness, {"image": LARGE}, {"text": "and"}, {"image": LARGE})
    assert twice == (plain, plain), "it is the same one wherever it stands"


def test_the_same_video_looked_at_otherwise_is_another_one(harness: WorkerHarness) -> None:
    video, other = make_clip(60), make_clip(40)
    found = [
        keys_of(harness, {"video": url(video), **FEW}),
        keys_of(harness, {"video": url(video), "fps": 3, **FEW}),
        keys_of(harness, {"video": url(video), "num_frames": 4, "max_pixels": 28 * 28 * 4, "min_pixels": 3136}),
        keys_of(harness, {"video": url(other), **FEW}),  # its first frames are the same
    ]
    assert len(set(found)) == len(found)
    assert keys_of(harness, {"video": url(video), **FEW}) == found[0]


def test_neighbours_that_leave_a_video_less_room_make_it_another_one(harness: WorkerHarness) -> None:
    video = {"video": url(make_clip(60)), "num_frames": 4, "max_pixels": 28 * 28 * 64, "min_pixels": 3136}
    (alone,) = keys_of(harness, video, max_model_len=200)
    beside = keys_of(harness, *[video] * 8, max_model_len=200)
    assert alone not in beside and len(set(beside)) == 1


def test_a_video_whose_end_is_damaged_has_the_key_of_what_is_left(harness: WorkerHarness) -> None:
    damaged = [{"video": url(mjpeg_clip(empty=range(40, 60))), "num_frames": 6, **FEW}, {"text": "x"}]
    lease = harness.ask

    def ask(measured: Any) -> Any:  # as the server does
        harness.end()
        return lease(measured)

    harness.ask = ask  # type: ignore[method-assign]
    done = harness.run(damaged)
    first, second = harness.asked
    assert first.keys != second.keys == (done.media[0].key,)
    harness.kept = set(second.keys)
    again = harness.run(damaged)
    assert [measured.keys for measured in harness.asked[2:]] == [first.keys, second.keys]
    assert again.media == done.media and not words_of(again) and harness.pool.stats().leases == 0


def test_the_sound_of_a_video_is_another_medium_than_a_sound(tmp_path: Path) -> None:
    omni = Checkpoint(write_qwen2_5_omni(tmp_path / "omni"))
    with worker_harness_at(tmp_path / "shm", family_of(omni).processor(omni, 28 * 28 * 1280)) as harness:
        harness.salt = b"s" * 32
        talkie = url(film(5, sound=56000))
        seen, heard = keys_of(harness, {"video": talkie, "use_audio_in_video": True, **FEW})
        (silent,) = keys_of(harness, {"video": talkie, **FEW})
        (sound,) = keys_of(harness, {"audio": talkie})
        assert len({seen, heard, sound}) == 3 and silent == seen


# ---- what the engine has


def words_of(done: Prepared) -> list[int]:
    return [int(id) for id in done.input_ids if id < 0]


def test_what_the_engine_has_is_not_decoded_and_not_written(
    harness: WorkerHarness, decoded: list[int], tiny: Checkpoint
) -> None:
    video = {"video": url(make_clip(60)), **FEW}
    inputs = [{"image": LARGE}, video, {"text": "x"}]
    full = harness.run(inputs)
    to_measure = len(decoded)
    image, clip = harness.asked[0].keys
    harness.end()
    harness.kept = {image, clip}
    decoded.clear()
    done = harness.run(inputs)
    assert done.media == full.media and (done.positions == full.positions).all()
    assert not words_of(done) and len(words_of(full)) == 4 and harness.pool.stats().leases == 0
    assert (
        len(decoded) < to_measure / 2 and "decode" not in done.seconds["image"] and "write" not in done.seconds["video"]
    )
    harness.kept = {clip}
    half = harness.run(inputs)
    assert len(words_of(half)) == 2 and harness.pool.stats().leases == 1
    ((start, length),) = half.media[1].spans
    assert len(set(half.input_ids[start : start + length].tolist())) == 1, "its pads are all pads"
    with pytest.raises(WordError):
        decode_shm_name_from_int64(int(half.input_ids[start]))
