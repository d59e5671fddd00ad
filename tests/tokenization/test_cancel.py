"""A cancel is looked at all along: between items, frames, packets and scans, and nothing is read after it."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from configs.checkpoint import Checkpoint
from configs.serve import MediaConfig
from model.families.qwen2.processor import Qwen2Processor
from tests.samples.pictures import encoded, photo
from tests.samples.sounds import encode_sound, make_tone
from tests.samples.videos import make_jpeg
from tests.tables import each_of
from tests.tokenization.worker_harness import url, worker_harness_at
from tokenization.cancel import Cancelled, Check
from tokenization.chat.parts import Media
from tokenization.media.audio import read_sound
from tokenization.media.image import decode_rgb
from tokenization.media.source import Source, fetch_source
from tokenization.media.video_frames import frames_from_jpegs, plan_single_frames, plan_video, read_frames
from tokenization.media.video_probe import probe
from tokenization.processor import Measure

CAPS = MediaConfig()
SIZE = (56, 112)
Read = Callable[[bytes, Check], object]  # of one video, with what it is asked


class Leaves:
    """A client that leaves at the n-th look, 0 for one that stays."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.looks = 0

    def __call__(self) -> None:
        self.looks += 1
        assert self.looks <= self.at or not self.at, "something is still read for a client that left"
        if self.looks == self.at:
            raise Cancelled


def picture(form: str, **options: Any) -> bytes:
    file = io.BytesIO()
    photo(600, 400).save(file, form, **options)
    return file.getvalue()


PNG = picture("PNG")
PROGRESSIVE = picture("JPEG", quality=98, progressive=True)  # ten scans
SOUND = encode_sound(make_tone(1.0, rate=44100))
JPEGS = [make_jpeg(i) for i in range(10)]
LIST = Media(kind="video", source="", frames=tuple(map(url, JPEGS)), param="x")


def listed(check: Check) -> Source:
    return Source(kind="video", param="x", data=b"", frames=tuple(JPEGS), check=check)


READS: dict[str, tuple[int, Read]] = {  # the fewest looks, and what reads
    "packets of a video": (60, lambda video, check: probe(video, CAPS, check)),
    "frames of a video": (60, lambda video, look: read_frames(video, probe(video, CAPS), range(60), SIZE, CAPS, look)),
    "pictures of a list": (10, lambda _, look: frames_from_jpegs(JPEGS, range(10), SIZE, CAPS, look)),
    "sources of a list": (10, lambda _, look: fetch_source(LIST, MediaConfig(), look)),
    "headers of a list": (10, lambda _, look: plan_video(listed(look), CAPS, factor=28)),
    "headers of single frames": (10, lambda _, look: plan_single_frames(listed(look), CAPS, side=28, usual=8)),
    "packets of a sound": (10, lambda _, look: read_sound(SOUND, MediaConfig(), check=look)),
    "blocks of a PNG": (10, lambda _, look: decode_rgb(PNG, max_source_pixels=10**9, check=look)),
    "scans of a JPEG": (8, lambda _, look: decode_rgb(PROGRESSIVE, max_source_pixels=10**9, check=look)),
}


@each_of("kind", READS)
def test_nothing_is_read_after_a_cancel(kind: str, plain: bytes) -> None:
    fewest, read = READS[kind]
    stays = Leaves()
    read(plain, stays)
    assert stays.looks >= fewest
    for at in (1, stays.looks // 2, stays.looks):
        leaves = Leaves(at)
        with pytest.raises(Cancelled):
            read(plain, leaves)
        assert leaves.looks == at


def test_frames_of_a_video_are_not_decoded_after_a_cancel(plain: bytes, decoded: list[int]) -> None:
    info = probe(plain, CAPS)
    decoded.clear()
    with pytest.raises(Cancelled):
        read_frames(plain, info, range(60), SIZE, CAPS, Leaves(20))
    assert len(decoded) <= 20


class Counting(Qwen2Processor):
    """Qwen2-VL that counts what it is asked."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint, 28 * 28 * 1280)
        self.measured = self.loaded = 0

    def measure(self, *args: Any) -> Measure:
        self.measured += 1
        return super().measure(*args)

    def load(self, *args: Any) -> np.ndarray:
        self.loaded += 1
        return super().load(*args)


@each_of("at", ["fetching", "measuring", "loading"])
def test_the_items_of_a_chat_after_a_cancel_are_not_read(tiny: Checkpoint, tmp_path: Path, at: str) -> None:
    """Eight pictures, each of which is fetched, measured and loaded."""
    processor = Counting(tiny)
    pictures = [{"image": url(encoded(photo(60, 40, i), "JPEG"))} for i in range(8)]
    with worker_harness_at(tmp_path / "shm", processor) as harness:
        harness.run(pictures)
        harness.end()
        assert (processor.measured, processor.loaded) == (8, 8) and harness.checks >= 24
        processor.measured = processor.loaded = harness.checks = 0
        harness.leaves_at = {"fetching": 4, "measuring": 8 + 4, "loading": 16 + 4}[at]
        with pytest.raises(Cancelled):
            harness.run(pictures)
        expected = {"fetching": (0, 0), "measuring": (3, 0), "loading": (8, 3)}[at]
        assert processor.measured == expected[0] and processor.loaded <= expected[1]  # loading looks more often
        assert harness.checks == harness.leaves_at
