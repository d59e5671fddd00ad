"""A list of pictures is read as a clip, under the same rules and caps."""

import base64
import io
import time

import numpy as np
import pytest
from PIL import Image

from configs.serve import MediaConfig
from tests.samples.videos import make_jpeg, make_png, read_number, read_numbers
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Media
from tokenization.media.frame_sampling import FrameSize
from tokenization.media.source import fetch_source
from tokenization.media.video_frames import frames_from_jpegs, probe_jpegs

CAPS = MediaConfig()
SIZE = (56, 112)


def test_a_list_of_pictures_is_a_clip() -> None:
    pictures = [make_jpeg(1), make_jpeg(2, (48, 80)), make_png()]
    assert [(header.height, header.width) for header in probe_jpegs(pictures, CAPS)] == [(96, 160), (48, 80), (96, 160)]
    frames = frames_from_jpegs(pictures, (0, 1, 2, 2), SIZE, CAPS)
    assert frames.shape == (4, *SIZE, 3)
    assert read_numbers(frames) == [1, 2, 5, 5]
    with Image.open(io.BytesIO(pictures[0])) as image:
        expected = image.resize((SIZE[1], SIZE[0]), Image.Resampling.BICUBIC)
    assert np.array_equal(frames[0], np.asarray(expected))


def test_pictures_of_a_list_are_turned_upright() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    turned = make_jpeg(3, exif=exif)
    (header,) = probe_jpegs([turned], CAPS)
    assert (header.height, header.width) == (160, 96)
    frames = frames_from_jpegs([turned], (0,), (160, 96), CAPS)
    assert read_number(np.rot90(frames[0])) == 3


def test_a_list_goes_through_the_same_size_rule() -> None:
    header = probe_jpegs([make_jpeg(1)] * 4, CAPS)[0]
    size = FrameSize(height=header.height, width=header.width, n=4, options=MediaOptions(), limits=CAPS).find()
    assert frames_from_jpegs([make_jpeg(1)] * 4, range(4), size, CAPS).shape == (4, 252, 420, 3)


def test_a_list_is_held_to_the_caps() -> None:
    caps = MediaConfig(max_frames=4, max_source_pixels=96 * 160 - 1)
    with pytest.raises(ChatError, match=r"frame 2 of the video: .*160 x 96"):
        probe_jpegs([make_jpeg(1, (48, 80)), make_jpeg(1)], caps)
    with pytest.raises(ChatError, match="160 x 96"):
        frames_from_jpegs([make_jpeg(1)], (0,), SIZE, caps)
    with pytest.raises(ChatError, match="frame 1 of the video"):
        probe_jpegs([b"nothing"], CAPS)
    with pytest.raises(ChatError, match="frame 2 of the video"):
        frames_from_jpegs([make_jpeg(1), make_jpeg(2)[:-400]], (0, 1), SIZE, CAPS)


def split(payload: str, limits: MediaConfig = CAPS) -> tuple[bytes, ...]:
    return fetch_source(Media(kind="video", source=f"data:video/jpeg;base64,{payload}", param="x"), limits).frames


def test_a_data_url_of_pictures_is_split() -> None:
    pictures = tuple(make_jpeg(number) for number in range(3))
    payload = ",".join(base64.b64encode(picture).decode() for picture in pictures)
    assert split(payload) == pictures
    with pytest.raises(ChatError, match="4 frames, at most 3"):
        split("A,A,A,A", MediaConfig(max_frames=3))
    for bad in ("", "A", "$$$$", payload + ","):
        with pytest.raises(ChatError):
            split(bad)


def test_too_many_pictures_are_refused_before_one_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenization.media.fetch.pybase64.b64decode", None)
    begin = time.process_time()
    with pytest.raises(ChatError, match="frames, at most 768"):
        split("," * 10_000_000)
    assert time.process_time() - begin < 0.5
