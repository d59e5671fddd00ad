"""Videos of every form become planned, read and patched frames, also where some of them do not decode."""

import base64
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from configs.serve import MediaConfig
from tests.samples.damaged_videos import mjpeg_clip
from tests.samples.videos import make_clip, make_jpeg, read_numbers
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import FORBIDDEN_URL, Media
from tokenization.media.source import Source, fetch_source
from tokenization.media.video_decoder import open_video
from tokenization.media.video_frames import plan_video, read_video, video_patches
from tokenization.media.video_plan import VideoPlan

LIMITS = MediaConfig()


def source(data: bytes = b"", *, frames: tuple[bytes, ...] = (), **options: Any) -> Source:
    return Source(kind="video", param="inputs[0].video", data=data, frames=frames, options=MediaOptions(**options))


def plan(clip: Source, limits: MediaConfig = LIMITS) -> VideoPlan:
    return plan_video(clip, limits, factor=28)


@pytest.fixture(scope="module")
def three_seconds() -> bytes:
    return make_clip(90)


def test_a_file_is_planned_by_its_time_and_options(three_seconds: bytes) -> None:
    found = plan(source(three_seconds))
    assert len(found.indices) == 6 and found.indices[0] == 0 and found.indices[-1] == 89
    assert found.seconds_per_grid == pytest.approx(1.0)
    few = plan(source(three_seconds, num_frames=4, max_pixels=28 * 28 * 8, min_pixels=3136))
    assert len(few.indices) == 4 and few.seconds_per_grid == pytest.approx(1.5)
    assert few.size[0] * few.size[1] <= 28 * 28 * 8 and few.size[0] % 28 == few.size[1] % 28 == 0


def test_the_server_s_limits_win(three_seconds: bytes) -> None:
    assert len(plan(source(three_seconds, fps=30), MediaConfig(max_frames=8)).indices) == 8
    small = plan(source(three_seconds, min_pixels=500_000), MediaConfig(max_pixels=28 * 28 * 10))
    assert small.size[0] * small.size[1] <= 28 * 28 * 10
    budget = plan(source(three_seconds), MediaConfig(max_video_pixels=28 * 28 * 30))
    assert budget.size[0] * budget.size[1] * len(budget.indices) // 2 <= 28 * 28 * 30
    for limits, message in (
        (MediaConfig(max_video_seconds=2.5), "lasts 3 s"),
        (MediaConfig(max_source_pixels=96 * 160 - 1), "pixels"),
    ):
        with pytest.raises(ChatError, match=message) as caught:
            plan(source(three_seconds), limits)
        assert caught.value.param is None
    clip, limits = source(three_seconds), MediaConfig(max_decoded_frames=20)
    with pytest.raises(ChatError, match="at most 20 are allowed"):
        read_video(clip, plan(clip, limits), limits)


def test_a_list_of_pictures_is_a_video() -> None:
    frames = tuple(make_jpeg(number) for number in (5, 9, 300))
    found = plan(source(frames=frames, fps=4))
    assert found.indices == (0, 1, 2, 2)
    assert found.seconds_per_grid == 0.5 and found.info is None
    assert read_numbers(read_video(source(frames=frames), found, LIMITS)) == [5, 9, 300, 300]
    with pytest.raises(ChatError, match="frame 2 of the video"):
        plan(source(frames=(frames[0], b"no picture")))
    with pytest.raises(ChatError, match=r"^fps: the video lasts more than the allowed 3600 s$"):
        plan(source(frames=frames, fps=1e-4))
    assert plan(source(frames=frames, num_frames=4)).indices == (0, 1, 2, 2)


def url(*pictures: bytes) -> str:
    return "data:video/jpeg;base64," + ",".join(base64.b64encode(picture).decode() for picture in pictures)


def test_sources_of_videos_are_fetched() -> None:
    pictures = (make_jpeg(1), make_jpeg(2), make_jpeg(3))
    joined = fetch_source(Media(kind="video", source=url(*pictures), param="w"), LIMITS)
    assert joined.frames == pictures and joined.data == b""
    each = tuple("data:image/jpeg;base64," + base64.b64encode(picture).decode() for picture in pictures)
    listed = fetch_source(Media(kind="video", source="", frames=each, param="w"), LIMITS)
    assert listed.frames == pictures
    plain = fetch_source(Media(kind="video", source="data:video/mp4;base64,QUJD", param="w"), LIMITS)
    assert plain.data == b"ABC" and plain.frames == ()
    assert fetch_source(Media(kind="image", source="data:video/jpeg;base64,QUJD", param="w"), LIMITS).data == b"ABC"


@pytest.mark.parametrize(
    ("limits", "message"),
    [(MediaConfig(max_frames=2), "3 frames, at most 2"), (MediaConfig(max_file_bytes=2000), "larger than the allowed")],
)
def test_lists_are_held_to_the_limits_before_anything_is_opened(limits: MediaConfig, message: str) -> None:
    each = tuple("data:image/jpeg;base64," + base64.b64encode(bytes(1000)).decode() for _ in range(3))
    joined = Media(kind="video", source=url(*[bytes(1000)] * 3), param="w")
    for media in (joined, Media(kind="video", source="", frames=each, param="w")):
        with pytest.raises(ChatError, match=message) as caught:
            fetch_source(media, limits)
        assert caught.value.param is None


def test_what_is_wrong_with_a_picture_of_a_list_is_told_with_its_number() -> None:
    data, web = "data:image/png;base64,QUJD", "http://a.test/1.png"
    for media, message, code in (
        (Media(kind="video", source=f"{url(b'ABC')},%%%", param="w"), "the base64 data is not valid", None),
        (Media(kind="video", source="", frames=(data, "data:,", data), param="w"), "the data: URL holds no data", None),
        (Media(kind="video", source="", frames=(data, web), param="w"), "media by http", FORBIDDEN_URL),
    ):
        with pytest.raises(ChatError, match=f"^frame 2 of the video: {message}") as caught:
            fetch_source(media, LIMITS)
        assert (caught.value.param, caught.value.code) == (None, code)


# ---- damage


@each_of(
    ("empty", "shown"),
    [
        (range(40, 60), [0, 12, 24, 35]),  # 47 and 59 are lost with the tail
        (range(30, 60), [0, 12, 24, 24]),  # an odd number: the last one stays on the screen
        (range(20, 30), [0, 12, 12, 35, 47, 59]),  # a hole: times behind it stay what they are
        (range(0, 5), [12, 12, 24, 35, 47, 59]),  # nothing before it: the first one that is there
    ],
)
def test_frames_that_do_not_decode(empty: range, shown: list[int]) -> None:
    whole = source(mjpeg_clip(), num_frames=6)
    found = plan(whole)
    assert found.indices == (0, 12, 24, 35, 47, 59)
    damaged = source(mjpeg_clip(empty=empty), num_frames=6)
    assert read_numbers(read_video(damaged, of(damaged, found), LIMITS)) == shown


def of(damaged: Source, found: VideoPlan) -> VideoPlan:
    """What was planned of a whole file, with the packets of a damaged one."""
    assert found.info is not None
    return replace(found, info=replace(found.info, reader=open_video(damaged.data, MediaConfig())))


def test_a_video_without_one_good_frame_is_refused() -> None:
    clip, damaged = source(mjpeg_clip()), source(mjpeg_clip(empty=range(60)))
    with pytest.raises(ChatError, match="no frame of the video can be decoded"):
        read_video(damaged, of(damaged, plan(clip)), LIMITS)


# ---- patches


def test_patches_against_a_layout_that_is_written_out() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (6, 56, 84, 3), dtype=np.uint8)
    found = video_patches(frames, patch=14, merge=2)
    assert found.shape == (3 * 4 * 6, 3 * 2 * 14 * 14) and found.dtype == np.uint8
    row = 0
    for grid in range(3):
        for top in range(2):
            for left in range(3):
                for down in range(2):
                    for right in range(2):
                        y, x = (2 * top + down) * 14, (2 * left + right) * 14
                        pair = frames[2 * grid : 2 * grid + 2, y : y + 14, x : x + 14]  # [frame, y, x, channel]
                        assert np.array_equal(found[row], pair.transpose(3, 0, 1, 2).ravel())
                        row += 1
    assert row == len(found)
