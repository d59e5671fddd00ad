"""The largest sizes are reached by a real item, and no item is larger."""

from hypothesis import given
from hypothesis import strategies as st

from configs.serve import MediaConfig
from model.grids.largest import largest_area, largest_video
from tests.tables import each_of
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import FrameSize
from tokenization.media.smart_resize import MAX_ASPECT, smart_resize


@given(st.integers(1, 3000))
def test_no_rectangle_is_larger(cells: int) -> None:
    rows, columns = largest_area(cells)
    assert 1 <= rows <= columns <= MAX_ASPECT * rows and rows * columns <= cells
    assert rows * columns == max(a * min(cells // a, MAX_ASPECT * a) for a in range(1, int(cells**0.5) + 1))


@given(st.integers(4, 3000))
def test_a_picture_of_that_size_stays_as_it_is(cells: int) -> None:
    rows, columns = largest_area(cells)
    size = smart_resize(rows * 28, columns * 28, factor=28, min_pixels=1, max_pixels=cells * 784)
    assert size == (rows * 28, columns * 28)


@each_of(
    "limits", [MediaConfig(), MediaConfig(max_frames=6), MediaConfig(max_video_pixels=784 * 50, max_pixels=784 * 9)]
)
@each_of("max_tokens", [1, 40, 1000, 32768, 46_464, 200_000])
def test_no_square_video_has_more_tokens(limits: MediaConfig, max_tokens: int) -> None:
    found = largest_video(limits, max_tokens, factor=28)
    most = 0
    for asked in (None, 235_200, limits.max_pixels):
        options = MediaOptions(min_pixels=asked and min(asked, limits.max_pixels), max_pixels=limits.max_pixels)
        for n in range(2, limits.max_frames + 1, 2):
            for side in (100, 500, 3000):
                height, width = FrameSize(height=side, width=side, n=n, options=options, limits=limits).find()
                tokens = n // 2 * height * width // 784
                most = max(most, tokens if tokens <= max_tokens else 0)
    if found is None:
        assert most == 0
        return
    grids, (height, width) = found
    assert most <= grids * height * width // 784 <= max_tokens
    assert 2 * grids <= limits.max_frames and grids * height * width <= max(
        limits.max_video_pixels,
        784 * grids,  # a frame cannot be less than one token
    )
    assert height * width <= limits.max_pixels


def test_a_request_s_minimum_lifts_the_published_total() -> None:
    """768 frames of 17 x 17 tokens, where a total of less leaves 11 x 11; 576 of 20 x 20 are more still."""
    limits = MediaConfig()
    size = FrameSize(
        height=3000, width=3000, n=768, limits=limits,
        options=MediaOptions(min_pixels=235_200, max_pixels=limits.max_pixels, total_pixels=10_000_000),
    )  # fmt: skip
    assert size.find() == (476, 476)
    assert largest_video(limits, 200_000, factor=28) == (288, (560, 560))


def test_there_may_be_no_video() -> None:
    limits = MediaConfig(max_pixels=784 * 9)
    assert largest_video(limits, 0, factor=28) is None
