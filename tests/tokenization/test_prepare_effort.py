"""Media that announce more work than their bytes can hold are refused before it is done; flat ones are not."""

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import MEGA
from model.registry import family_of
from tests.samples.hostile_media import (
    black_clip,
    flat_png,
    flat_webp,
    gif_canvas,
    padded_jpeg,
    scanned_page,
)
from tests.samples.pictures import encoded, photo
from tests.samples.videos import make_jpeg
from tests.tables import each_of
from tests.tokenization.worker_harness import WorkerHarness, url, worker_harness_at
from tokenization.chat.errors import ChatError
from tokenization.media.effort import STUDIED
from tokenization.messages import StartWorker
from tokenization.prepare import NotShort

CPU_SECONDS = 2.0  # far above what refusing takes, far below what decoding would: 14 to 46 s


@pytest.fixture
def harness(tmp_path: Path, tiny: Checkpoint) -> Iterator[WorkerHarness]:
    with worker_harness_at(tmp_path / "shm", family_of(tiny).processor(tiny, 28 * 28 * 256)) as harness:
        yield harness


def costly(harness: WorkerHarness, inputs: object, start: StartWorker | None = None) -> ChatError:
    """What the chat is refused with, after little work."""
    begun = time.process_time()
    error = harness.refused(inputs, start)
    assert time.process_time() - begun < CPU_SECONDS
    return error


def test_an_animation_of_a_pixel_on_a_large_canvas(harness: WorkerHarness, decoded: list[int]) -> None:
    """Row 2: 40 frames and 100, once each and in one request; of each canvas a few frames are decoded to know it."""
    for n in (40, 100):
        data = gif_canvas(8191, 4319, n)
        error = costly(harness, [{"video": url(data), "num_frames": n}])
        assert error.code == "media_too_costly" and error.param == "inputs[0].video"
        effort, allowed = gif_effort(n, 8191 * 4319, data), 256 * MEGA + 12288 * len(data)
        assert f"takes {-(-effort // MEGA)} megapixels of work, at most {allowed // MEGA} are" in error.message
        assert f"media of {len(data)} bytes" in error.message
    assert len(decoded) <= 4
    decoded.clear()
    small = gif_canvas(1920, 1080, 2)
    n = (256 * MEGA + 12288 * 30 * len(small)) // gif_effort(2, 1920 * 1080, small)
    error = costly(harness, [{"video": url(small), "num_frames": 2}] * 30)
    assert error.param == f"inputs[{n}].video" and n < 30 and len(decoded) == n + 1


def gif_effort(n: int, pixels: int, data: bytes) -> int:
    """Of `n` frames that are decoded and looked at, beside those that FFmpeg decodes to know the file."""
    return round(n * pixels * 1.5 + (n + min(n, STUDIED)) * pixels * 0.5 + 18 * len(data))


@pytest.mark.parametrize("scans", [1, 1700])
def test_a_jpeg_of_empty_scans(harness: WorkerHarness, scans: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2: no scan is decoded, whether the bytes are too few for the pixels, or the scans too many for the bytes."""
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    error = costly(harness, [{"image": url(padded_jpeg(65500, 2700, scans))}])
    assert "incomplete" in error.message and error.param == "inputs[0].image"
    if scans > 1:
        error = costly(harness, [{"image": url(padded_jpeg(65500, 2700, scans, nbytes=413_208))}])
        assert error.code == "media_too_costly" and "takes 9568 megapixels of work, at most 1948" in error.message


def test_a_list_of_frames_has_one_budget(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 2: 60 frames of 164 bytes, and 60 of one colour that are whole."""
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    error = costly(harness, [{"video": [url(padded_jpeg(8192, 4319))] * 60}])
    assert "frame 1 of the video: the image is incomplete" in error.message and error.param == "inputs[0].video"
    flat = url(flat_webp(64, 64))
    begun = costly(harness, [{"video": [flat] * 60}], harness.start(free_effort_pixels=0, max_effort_pixels=1))
    assert begun.code == "media_too_costly"


def test_media_of_one_request_share_their_allowance(harness: WorkerHarness) -> None:
    start = harness.start(free_effort_pixels=10_000)
    webp, jpeg = flat_webp(64, 64), make_jpeg(1)
    still, clip = {"image": url(webp)}, {"video": [url(jpeg)] * 4}
    of_still, of_clip = 2 * 64**2 + 4 * len(webp), 4 * round(96 * 160 + 0.6 * len(jpeg))
    most = of_clip + 2 * of_still
    error = costly(harness, [clip, *[still] * 9], harness.start(free_effort_pixels=0, max_effort_pixels=most))
    assert error.param == "inputs[3].image"
    assert harness.run([still] * (10_000 // of_still + 1), start, count_only=True).media
    error = costly(harness, [still], harness.start(max_effort_pixels=of_still - 1))
    assert error.code == "media_too_costly" and "takes 1 megapixels of work, at most 0" in error.message


def test_counting_tokens_is_refused_alike(harness: WorkerHarness) -> None:
    with pytest.raises(ChatError, match="megapixels of work"):
        harness.run([{"video": url(gif_canvas(8191, 4319, 40)), "num_frames": 40}], count_only=True)


def test_the_worker_of_pictures_hands_back_what_takes_long(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the work of all pictures together, before one is decoded."""
    flat = {"image": url(flat_webp(4000, 3000))}  # 24 megapixels of work
    pictures = msgspec.structs.replace(harness.start(), lane="picture")
    assert len(harness.run([flat] * 2, pictures, count_only=True).media) == 2
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)
    with pytest.raises(NotShort):
        harness.run([flat] * 3, pictures)
    assert not harness.asked


def test_what_loading_may_take_grows_with_the_work(harness: WorkerHarness) -> None:
    for n in (1, 3):
        harness.run([{"image": url(flat_webp(1000, 500))}] * n)
    one, three = (measured.seconds for measured in harness.asked)
    assert three == pytest.approx(3 * one, rel=1e-3) and one == pytest.approx(0.1, rel=0.01), "ten times 10 ms"


FLAT = {
    "png of 12 megapixels": lambda: {"image": url(flat_png(4000, 3000, colour=2))},
    "grey png of 12 megapixels": lambda: {"image": url(flat_png(4000, 3000))},
    "webp of 12 megapixels": lambda: {"image": url(flat_webp(4000, 3000))},
    "A4 at 600 dpi, 1 bit": lambda: {"image": url(scanned_page())},
    "a blank page": lambda: {"image": url(flat_png(4960, 7016, bits=1))},
    "black clip": lambda: {"video": url(black_clip(4, width=1280, height=720))},
}


@each_of("what", FLAT)
def test_flat_media_are_honest(harness: WorkerHarness, what: str) -> None:
    begun = time.process_time()
    done = harness.run([FLAT[what](), {"text": "?"}])
    assert len(done.media) == 1 and (done.input_ids < 0).sum() == 2
    assert time.process_time() - begun < 20


def test_ten_flat_pictures_and_many_photographs(harness: WorkerHarness) -> None:
    flat, print_ = url(flat_webp(4000, 3000)), url(encoded(photo(640, 480), "JPEG", quality=30))
    assert len(harness.run([{"image": flat}] * 10, count_only=True).media) == 10
    assert costly(harness, [{"image": flat}] * 11).param == "inputs[10].image"
    assert len(harness.run([{"image": print_}] * 32, harness.start(1 << 20), count_only=True).media) == 32
