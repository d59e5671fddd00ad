"""The size that a picture or a frame is resized to, and how many tokens its patches become."""

import math

MAX_ASPECT = 200


def smart_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int) -> tuple[int, int]:
    """(height, width): multiples of `factor`, halves to the even one, within bounds. Raises ValueError above 200:1."""
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"one side of {width} x {height} is more than {MAX_ASPECT} times the other")
    rounded_h, rounded_w = round(height / factor) * factor, round(width / factor) * factor
    if rounded_h * rounded_w > max_pixels:
        return _shrunk(height, width, factor, max_pixels)
    if rounded_h * rounded_w < min_pixels:
        grow = math.sqrt(min_pixels / (height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rounded_h, rounded_w


def held_resize(height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int, cap: int) -> tuple[int, int]:
    """`smart_resize`, held to at most max(cap, factor^2) pixels where its rounding goes beyond. Raises as it does."""
    size = smart_resize(height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels)
    if size[0] * size[1] <= cap:
        return size
    size = _shrunk(height, width, factor, min(max_pixels, cap))
    if size[0] * size[1] <= cap:
        return size
    # A side cannot be shorter than `factor`: the long one gives way.
    short = min(size)
    long = max(factor, cap // short // factor * factor)
    return (long, short) if size[0] >= size[1] else (short, long)


def _shrunk(height: int, width: int, factor: int, pixels: int) -> tuple[int, int]:
    shrink = math.sqrt(height * width / pixels)
    return (
        max(factor, math.floor(height / shrink / factor) * factor),
        max(factor, math.floor(width / shrink / factor) * factor),
    )


def n_tokens(grid: tuple[int, int, int], merge: int) -> int:
    """One for each merge x merge block of a (t, h, w) grid of patches."""
    return grid[0] * (grid[1] // merge) * (grid[2] // merge)
