"""Sizes against tables worked out by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tables import each_of
from tokenization.media.smart_resize import held_resize, n_tokens, smart_resize


@each_of(
    "height, width, min_pixels, max_pixels, expected",
    [
        (56, 84, 3136, 1003520, (56, 84)),  # already multiples
        (70, 98, 3136, 1003520, (56, 112)),  # 2.5 -> 2 and 3.5 -> 4: halves go to the even one
        (69, 71, 3136, 1003520, (56, 84)),  # 2.46 -> 2, 2.54 -> 3
        (720, 1420, 3136, 12845056, (728, 1428)),  # 25.7 -> 26, 50.7 -> 51
        (720, 1420, 3136, 1003520, (700, 1400)),  # 728 x 1428 is too large: floors of sides over 1.0094
        (1, 1, 3136, 1003520, (56, 56)),
        (1, 200, 3136, 1003520, (28, 812)),  # grow = sqrt(3136 / 200) = 3.96: ceil(0.14), ceil(28.3)
        (28, 28, 784, 1003520, (28, 28)),
        (100, 20000, 3136, 3136, (28, 784)),  # a side is never below one block: the bound gives way
    ],
)
def test_smart_resize(height: int, width: int, min_pixels: int, max_pixels: int, expected: tuple[int, int]) -> None:
    sizes = smart_resize(height, width, factor=28, min_pixels=min_pixels, max_pixels=max_pixels)
    turned = smart_resize(width, height, factor=28, min_pixels=min_pixels, max_pixels=max_pixels)
    assert sizes == expected and turned == expected[::-1]


@each_of("height, width, fits", [(1, 200, True), (1, 201, False), (200, 1, True), (5, 1001, False)])
def test_one_side_at_most_200_times_the_other(height: int, width: int, fits: bool) -> None:
    if fits:
        smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1003520)
    else:
        with pytest.raises(ValueError, match="200 times"):
            smart_resize(height, width, factor=28, min_pixels=3136, max_pixels=1003520)


@given(
    short=st.integers(1, 4000), aspect=st.floats(1, 200), fewest=st.integers(1, 10**6), most=st.integers(1, 10**6),
    cap=st.integers(1, 10**6), upright=st.booleans(),
)  # fmt: skip
def test_nothing_passes_the_cap(short: int, aspect: float, fewest: int, most: int, cap: int, upright: bool) -> None:
    size = (int(short * aspect), short) if upright else (short, int(short * aspect))
    most = min(most, cap)
    fewest = min(fewest, most)
    height, width = held_resize(*size, factor=28, min_pixels=fewest, max_pixels=most, cap=cap)
    plain = smart_resize(*size, factor=28, min_pixels=fewest, max_pixels=most)
    assert height * width <= max(cap, 28**2) and min(height, width) >= 28
    assert height % 28 == width % 28 == 0
    assert (height, width) == plain or plain[0] * plain[1] > cap


@each_of(
    "height, width, min_pixels, cap, expected",
    [
        (300, 301, 200704, 200704, (420, 448)),  # growing to the minimum would round up to 448 x 476
        (20, 4000, 3136, 100352, (28, 3584)),  # one block high: the long side gives way
        (10, 2000, 100352, 100352, (28, 3584)),  # rounds to no block at all
        (1, 1, 1, 1, (28, 28)),  # never less than one block
    ],
)
def test_what_passes_the_cap(height: int, width: int, min_pixels: int, cap: int, expected: tuple[int, int]) -> None:
    assert held_resize(height, width, factor=28, min_pixels=min_pixels, max_pixels=cap, cap=cap) == expected


def test_tokens_are_merge_blocks() -> None:
    assert n_tokens((1, 4, 6), 2) == 6
    assert n_tokens((3, 4, 6), 2) == 18
