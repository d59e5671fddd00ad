"""Frame counts, indices, times and sizes against numbers worked by hand, and the caps against every knob."""

import json
import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.serve import MediaConfig
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import (
    MAX_FPS,
    UNBOUNDED,
    FrameRules,
    FrameSize,
    count_frames,
    frame_indices,
    sample_frame_list,
    sample_frames,
    sample_middles,
)

CAPS = MediaConfig(max_pixels=UNBOUNDED)


def frame_size(height: int, width: int, n: int, options: MediaOptions, caps: MediaConfig) -> tuple[int, int]:
    return FrameSize(height=height, width=width, n=n, options=options, limits=caps).find()


@each_of(
    ("n_frames", "video_fps", "fps", "expected"),
    [
        # 10 s at 30: seconds x fps, rounded down to an even number, at least 4.
        (300, 30.0, None, 20),
        (300, 30.0, 0.5, 4),  # 5
        (300, 30.0, 0.1, 4),  # 1, but at least 4
        (300, 30.0, 1, 10),
        (300, 30.0, 3.0, 30),
        (300, 30.0, 30, 300),
        # 32 s at 25
        (800, 25.0, None, 64),
        (800, 25.0, 0.5, 16),
        (800, 25.0, 30, 768),  # 960, at most 768
        (800, 30.0, 2, 52),  # 53.3
        (800, 30000 / 1001, 2, 52),  # 53.4
        # short clips: at most as many as there are, rounded down
        (1, 30.0, None, 2),  # the frame twice
        (1, 30.0, 30, 2),
        (2, 30.0, None, 2),
        (3, 30.0, None, 2),
        (4, 30.0, None, 4),
        (5, 1.0, None, 4),  # 10, but there are 5
        (7, 10.0, None, 4),  # 1.4
        (9, 1.0, None, 8),
        (45, 30.0, 2, 4),  # 3
        (45, 30.0, 5, 6),  # 7.5
        (101, 25.0, 2.5, 10),  # 10.1
    ],
)
def test_count_by_fps(n_frames: int, video_fps: float, fps: float | None, expected: int) -> None:
    assert count_frames(n_frames, video_fps, MediaOptions(fps=fps), CAPS) == expected


@each_of(
    ("n_frames", "num_frames", "expected"),
    [
        (300, 2, 2),
        (300, 3, 4),  # 1.5 pairs round to 2
        (300, 5, 4),  # 2.5 pairs round to 2, the even one
        (300, 6, 6),
        (300, 7, 8),  # 3.5 pairs round to 4
        (300, 300, 300),
        (3, 3, 2),  # 4 would be more than there are
        (800, 800, 768),
        (1, 16, 2),
    ],
)
def test_count_by_number(n_frames: int, num_frames: int, expected: int) -> None:
    assert count_frames(n_frames, 30.0, MediaOptions(num_frames=num_frames), CAPS) == expected


@each_of("n_frames", [2, 3, 5, 300])
@each_of("whole", [False, True])
def test_a_clip_with_fewer_frames_than_are_asked_for_is_seen_whole(n_frames: int, whole: bool) -> None:
    """vLLM's loader takes min(num_frames, the clip's own); processors show the last one of an odd number twice."""
    rules = FrameRules(whole=whole)
    for asked in (n_frames + 1, n_frames + 2, 10**9):
        found = sample_frames(n_frames, 30.0, MediaOptions(num_frames=asked), CAPS, rules=rules)
        assert found.indices == (*range(n_frames), *(n_frames - 1,) * (n_frames % 2)) and found.n == n_frames
        assert found.seconds_per_grid == pytest.approx(2 / 30)
        assert sample_middles(n_frames, 30.0, MediaOptions(num_frames=asked), 768, usual=8) == tuple(range(n_frames))
    capped = sample_frames(n_frames, 30.0, MediaOptions(num_frames=10**9), MediaConfig(max_frames=3), rules=rules)
    assert len(capped.indices) == 2, "with its twin the third would be one more than the server's bound"


def test_fewer_frames_than_one_grid_has_are_refused() -> None:
    with pytest.raises(ChatError, match="num_frames must be at least 2"):
        count_frames(300, 30.0, MediaOptions(num_frames=1), CAPS)


@each_of("fps", [0.0, -1.0, math.nan, math.inf])
def test_a_clip_without_frames_or_time_is_refused(fps: float) -> None:
    with pytest.raises(ChatError, match="no frames"):
        count_frames(0, 30.0, MediaOptions(), CAPS)
    with pytest.raises(ChatError, match="no frames"):
        count_frames(5, fps, MediaOptions(), CAPS)


@each_of(
    ("n_frames", "n", "expected"),
    [
        (10, 4, (0, 3, 6, 9)),
        (8, 4, (0, 2, 5, 7)),  # 2.33, 4.67
        (5, 2, (0, 4)),
        (1, 2, (0, 0)),
        (4, 4, (0, 1, 2, 3)),
        (7, 6, (0, 1, 2, 4, 5, 6)),  # 1.2, 2.4, 3.6, 4.8
        (300, 6, (0, 60, 120, 179, 239, 299)),  # 59.8, 119.6, 179.4, 239.2
    ],
)
def test_indices(n_frames: int, n: int, expected: tuple[int, ...]) -> None:
    assert frame_indices(n_frames, n) == expected


def test_seconds_come_from_what_was_really_sampled() -> None:
    whole = sample_frames(300, 30.0, MediaOptions(), CAPS)
    assert whole.seconds_per_grid == 1.0
    # 26.67 s at 2 a second would be 53.3 frames; 52 of them lie further apart: 52 / 26.67 s = 1.95 a second.
    rounded = sample_frames(800, 30.0, MediaOptions(fps=2), CAPS)
    assert rounded.seconds_per_grid == pytest.approx(2 / 1.95)
    # Half a second at 2 a second would be 1 frame; it is 4: 8 a second.
    short = sample_frames(15, 30.0, MediaOptions(fps=2), CAPS)
    assert len(short.indices) == 4
    assert short.seconds_per_grid == pytest.approx(0.25)
    assert sample_frames(60, 30.0, MediaOptions(num_frames=8), CAPS).seconds_per_grid == pytest.approx(0.5)


def test_a_list_of_frames_is_taken_as_it_is() -> None:
    even = sample_frame_list(4, MediaOptions(), CAPS)
    assert (even.indices, even.seconds_per_grid) == ((0, 1, 2, 3), 1.0)
    assert sample_frame_list(3, MediaOptions(fps=4), CAPS).indices == (0, 1, 2, 2)
    assert sample_frame_list(3, MediaOptions(fps=4), CAPS).seconds_per_grid == 0.5
    assert sample_frame_list(60, MediaOptions(fps=60), CAPS).seconds_per_grid == pytest.approx(2 / 60), (
        "as taken, no cap"
    )
    assert sample_frame_list(1, MediaOptions(), CAPS).indices == (0, 0)
    assert sample_frame_list(8, MediaOptions(num_frames=4), CAPS).indices == (0, 2, 5, 7)
    assert sample_frame_list(7, MediaOptions(), MediaConfig(max_frames=7)).indices == (0, 1, 2, 3, 4, 5)
    for n in (0, 769):
        with pytest.raises(ChatError, match="1 to 768"):
            sample_frame_list(n, MediaOptions(), CAPS)


@each_of(
    ("height", "width", "n", "options", "expected"),
    [
        # 768 x 784 pixels a frame: 1080 x 1920 shrinks by 1.856 to 582.0 x 1034.6
        (1080, 1920, 20, MediaOptions(), (560, 1008)),
        # 90,316,800 / 600 x 2 = 301,056 a frame: by 2.624 to 411.5 x 731.6
        (1080, 1920, 600, MediaOptions(), (392, 728)),
        # a total of 17,340,826: 115,605 a frame, by 4.235 to 255.0 x 453.3
        (1080, 1920, 300, MediaOptions(total_pixels=17_340_826), (252, 448)),
        # 45,158 a frame would be left of it, but the minimum and 5 % is 105,369: by 4.436 to 243.5 x 432.8
        (1080, 1920, 768, MediaOptions(total_pixels=17_340_826), (224, 420)),
        # a total above the published one and above the server's: 235,200 a frame, by 2.969 to 363.7 x 646.6
        (1080, 1920, 768, MediaOptions(total_pixels=10**10), (336, 644)),
        # below 128 x 784 = 100,352: grows by 3.168 to 316.8, rounded up
        (100, 100, 4, MediaOptions(), (336, 336)),
        (480, 640, 4, MediaOptions(), (476, 644)),
        # a request's maximum is below the usual minimum, and wins: 240 x 320 shrinks by 1.237 to 194.0 x 258.7
        (240, 320, 4, MediaOptions(max_pixels=50176), (168, 252)),
        # growing to the minimum would give 336 x 336, which is more than the maximum
        (300, 300, 4, MediaOptions(max_pixels=100_000), (308, 308)),
        # a request's minimum: grows by 2.5 to 600.0 x 800.0
        (240, 320, 4, MediaOptions(min_pixels=480_000), (616, 812)),
        (28, 28, 4, MediaOptions(min_pixels=1, max_pixels=1), (28, 28)),
    ],
)
def test_frame_size(height: int, width: int, n: int, options: MediaOptions, expected: tuple[int, int]) -> None:
    assert frame_size(height, width, n, options, CAPS) == expected


def test_a_frame_that_is_far_too_long_is_refused() -> None:
    with pytest.raises(ChatError, match="too long"):
        frame_size(10, 2001, 4, MediaOptions(), CAPS)
    frame_size(10, 2000, 4, MediaOptions(), CAPS)


def test_a_number_of_frames_is_not_a_rate() -> None:
    assert count_frames(120, 120.0, MediaOptions(num_frames=100), CAPS) == 100
    assert count_frames(120, 120.0, MediaOptions(fps=100), CAPS) == 30
    assert count_frames(120, 120.0, MediaOptions(num_frames=100), MediaConfig(max_frames=64)) == 64


@given(
    short=st.integers(1, 3000), aspect=st.floats(1, 200), n=st.sampled_from([2, 4, 60, 768]),
    fewest=st.integers(1, 10**6), most=st.integers(1, 10**6),
)  # fmt: skip
def test_no_frame_is_larger_than_it_may_be(short: int, aspect: float, n: int, fewest: int, most: int) -> None:
    options = MediaOptions(min_pixels=min(fewest, most), max_pixels=most)
    for size in ((short, int(short * aspect)), (int(short * aspect), short)):
        height, width = frame_size(*size, n, options, CAPS)
        assert height * width <= max(min(most, 768 * 28 * 28), 28**2)
    assert math.prod(frame_size(20, 4000, 4, MediaOptions(max_pixels=100_352), CAPS)) == 28 * 3584


HOSTILE = [-1, 0, 1e9, 10**9, math.nan, "x", math.inf, True, [], {}, 10**400, 2**63, -(2**63), 1e-300]


@each_of("value", HOSTILE, ids=lambda v: str(v)[:8])
@each_of("knob", ["fps", "num_frames", "min_pixels", "max_pixels", "total_pixels"])
def test_no_knob_lifts_a_cap(knob: str, value: object) -> None:
    caps = MediaConfig(max_frames=16, max_video_pixels=64 * 784)
    try:
        options = MediaOptions.read({knob: value, "video": "ignored"})
    except ChatError as error:
        assert error.param == knob
        assert not (isinstance(value, int) and value == 10**9), "a number that is only large is capped, not refused"
        return
    assert isinstance(value, int | float)
    assert 0 < value <= 1e9
    for n_frames, video_fps in ((1, 30.0), (100, 240.0), (10_000, 30.0), (100_000, 60.0)):
        try:
            sampling = sample_frames(n_frames, video_fps, options, caps)
        except ChatError:
            assert knob == "num_frames"  # more than there are
            continue
        n = len(sampling.indices)
        assert n <= 16
        assert knob == "num_frames" or n <= max(4, n_frames / video_fps * MAX_FPS)
        for height, width in ((1080, 1920), (100, 20_000), (7, 1400), (4000, 20)):
            size = frame_size(height, width, n, options, caps)
            assert n / 2 * size[0] * size[1] <= 64 * 784
            assert not any(side % 28 for side in size)


def test_knobs_exclude_each_other() -> None:
    with pytest.raises(ChatError, match="exclude each other"):
        MediaOptions(fps=1, num_frames=4)
    with pytest.raises(ChatError, match="min_pixels must not be greater"):
        MediaOptions(min_pixels=2, max_pixels=1)
    assert MediaOptions.read(json.loads('{"video": "a", "fps": 2}')) == MediaOptions(fps=2)
    assert MediaOptions.read({}) == MediaOptions()


def test_options_travel() -> None:
    options = MediaOptions(fps=1.5, max_pixels=10**9)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(options), type=MediaOptions) == options
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"fps": -1.0}), type=MediaOptions)


@given(
    n_frames=st.integers(1, 5000),
    video_fps=st.floats(0.1, 240),
    fps=st.none() | st.floats(0.01, 1000),
    size=st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
)
def test_every_sampling_is_even_ascending_and_within(
    n_frames: int, video_fps: float, fps: float | None, size: tuple[int, int]
) -> None:
    options = MediaOptions(fps=fps)
    sampling = sample_frames(n_frames, video_fps, options, CAPS)
    n = len(sampling.indices)
    assert n % 2 == 0 and 2 <= n <= 768
    assert list(sampling.indices) == sorted(sampling.indices)
    assert sampling.indices[0] == 0 and sampling.indices[-1] == n_frames - 1
    assert sampling.seconds_per_grid == pytest.approx(2 * n_frames / video_fps / n)
    if max(size) <= 200 * min(size):
        height, width = frame_size(*size, n, options, CAPS)
        assert height % 28 == width % 28 == 0
        assert height * width * n / 2 <= CAPS.max_video_pixels
