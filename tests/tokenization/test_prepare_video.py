"""One job of a worker that holds videos: what is measured and leased, and leased again when less comes out."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from model.registry import family_of
from shm import SegmentError, decode_shape_from_int64, decode_shm_name_from_int64, read_segment
from tests.samples.damaged_videos import mjpeg_clip
from tests.samples.pictures import encoded, photo
from tests.samples.videos import make_clip
from tests.tokenization.worker_harness import WorkerHarness, url, worker_harness_at
from tokenization.chat.errors import ChatError
from tokenization.messages import MediaItem, Prepared

FEW = {"max_pixels": 28 * 28 * 8, "min_pixels": 3136}
SMALL = url(encoded(photo(60, 60), "PNG"))


@pytest.fixture
def harness(tmp_path: Path, tiny: Checkpoint) -> Iterator[WorkerHarness]:
    with worker_harness_at(tmp_path / "shm", family_of(tiny).processor(tiny, 28 * 28 * 1280)) as harness:
        yield harness


def pixels_of(harness: WorkerHarness, done: Prepared, item: MediaItem) -> np.ndarray:
    start = item.spans[0][0]
    name, shape = done.input_ids[start : start + 2].tolist()
    return read_segment(harness.root, decode_shm_name_from_int64(name), decode_shape_from_int64(shape), np.uint8)


@pytest.fixture(scope="module")
def video() -> str:
    return url(make_clip(60))


def test_a_video_between_pictures(harness: WorkerHarness, video: str) -> None:
    done = harness.run([{"image": SMALL}, {"video": video, "fps": 3, **FEW}, {"text": "x"}, {"image": SMALL}])
    image, clip, last = done.media
    assert (image.kind, clip.kind, last.kind) == ("image", "video", "image")
    t, h, w = clip.grid
    assert t == 3 and clip.seconds_per_grid == pytest.approx(2 / 3) and image.seconds_per_grid is None
    (measured,) = harness.asked
    assert measured.nbytes[1] == t * h * w * 1176 and measured.params[1] == "inputs[1].video"
    assert pixels_of(harness, done, clip).shape == (t * h * w, 1176)
    ((start, length),) = clip.spans
    pad = harness.processor.tokenizer.special["<|video_pad|>"]
    assert length == t * h * w // 4 and (done.input_ids[start + 2 : start + length] == pad).all()
    assert done.seconds["video"]["decode"] > 0


def test_counting_a_video_reads_what_preparing_it_reads(harness: WorkerHarness, video: str) -> None:
    inputs = [{"video": video, **FEW}, {"text": "x"}]
    counted = harness.run(inputs, count_only=True)
    assert not harness.asked
    done = harness.run(inputs)
    assert len(done.input_ids) == len(counted.input_ids) and np.array_equal(done.positions, counted.positions)


def test_a_damaged_end_is_measured_and_leased_again(harness: WorkerHarness, tmp_path: Path) -> None:
    inputs: list[Any] = [
        {"image": SMALL}, {"video": url(mjpeg_clip(empty=range(40, 60))), "num_frames": 6, **FEW}, {"text": "x"},
        {"video": url(mjpeg_clip()), "num_frames": 6, **FEW},
    ]  # fmt: skip
    leased: list[tuple[str, ...]] = []
    lease = harness.ask

    def ask(measured: Any) -> tuple[str, ...]:  # as the server does
        harness.end()
        leased.append(tuple(lease(measured)))
        return leased[-1]

    harness.ask = ask  # type: ignore[method-assign]
    done = harness.run(inputs)
    first, second = harness.asked
    assert second.nbytes == (first.nbytes[0], first.nbytes[1] * 2 // 3, first.nbytes[2])
    assert [item.grid[0] for item in done.media] == [1, 2, 3]
    for name in leased[0]:
        with pytest.raises(SegmentError):
            read_segment(harness.root, name, (1,), np.uint8)
    assert [pixels_of(harness, done, item).nbytes for item in done.media] == list(second.nbytes)
    assert done.position_delta == done.positions.max() + 1 - len(done.input_ids)
    harness.end()
    whole = harness.run([inputs[0], {**inputs[1], "video": url(mjpeg_clip(40)), "num_frames": 4}, *inputs[2:]])
    assert len(whole.input_ids) == len(done.input_ids) and np.array_equal(whole.positions, done.positions)


def test_a_video_of_which_nothing_decodes_is_refused(harness: WorkerHarness) -> None:
    with pytest.raises(ChatError) as caught:
        harness.run([{"image": SMALL}, {"video": url(mjpeg_clip(empty=range(60)))}])
    assert caught.value.param == "inputs[1].video" and "no frame" in caught.value.message


def test_what_is_no_video_is_refused_before_anything_is_reserved(harness: WorkerHarness, video: str) -> None:
    for inputs, param, words in (
        ([{"video": SMALL.replace("data:;", "data:video/mp4;"), "fps": 2}], "inputs[0].video", "video"),
        ([{"text": "x"}, {"video": [SMALL, "data:,x"]}], "inputs[1].video", "frame 2"),
    ):
        error = harness.refused(inputs)
        assert error.param == param and words in error.message


def test_the_pixel_bounds_of_a_picture(harness: WorkerHarness) -> None:
    large = url(encoded(photo(900, 600), "JPEG"))

    def tokens(**beside: Any) -> int:
        return harness.run([{"image": large, **beside}], count_only=True).media[0].spans[0][1]

    plain = tokens()
    assert plain == 32 * 21 == tokens(detail="high") == tokens(detail="auto")
    assert tokens(max_pixels=28 * 28 * 100) <= 100
    assert 250 <= tokens(detail="low") <= 512 * 512 // 784
    assert tokens(detail="low", max_pixels=28 * 28 * 50) <= 50
    assert plain < tokens(min_pixels=28 * 28 * 1000) <= 1280
    assert tokens(min_pixels=10**9, max_pixels=10**9) <= 1280  # the server's cap wins
