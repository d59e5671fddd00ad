"""The size that a picture or a frame is resized to, and how many tokens its patches become."""

import math

MAX_ASPECT = 200


def smart_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int, frames: int = 1
) -> tuple[int, int]:
    """(height, width): multiples of `factor`, halves to the even one, within bounds. Raises ValueError above 200:1.

    frames: of a video whose bounds are those of all its frames together, one after the other.
    """
    if frames > 1 and min(height, width) < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise ValueError(f"one side of {width} x {height} is more than {MAX_ASPECT} times the other")
    rounded_h, rounded_w = round(height / factor) * factor, round(width / factor) * factor
    pixels = rounded_h * rounded_w * (round(frames / 2) * 2 if frames > 1 else 1)
    if pixels > max_pixels:
        return _shrunk(height, width, factor, max_pixels, frames)
    if pixels < min_pixels:
        grow = math.sqrt(min_pixels / (frames * height * width))
        return math.ceil(height * grow / factor) * factor, math.ceil(width * grow / factor) * factor
    return rounded_h, rounded_w


def held_resize(
    height: int, width: int, *, factor: int, min_pixels: int, max_pixels: int, cap: int, frames: int = 1
) -> tuple[int, int]:
    """`smart_resize`, held to at most max(cap, factor^2) pixels of one frame where its rounding goes beyond.

    Raises as it does.
    """
    size = smart_resize(height, width, factor=factor, min_pixels=min_pixels, max_pixels=max_pixels, frames=frames)
    if size[0] * size[1] <= cap:
        return size
    size = _shrunk(height, width, factor, min(max_pixels // frames, cap))
    if size[0] * size[1] <= cap:
        return size
    # A side cannot be shorter than `factor`: the long one gives way.
    short = min(size)
    long = max(factor, cap // short // factor * factor)
    return (long, short) if size[0] >= size[1] else (short, long)


def _shrunk(height: int, width: int, factor: int, pixels: int, frames: int = 1) -> tuple[int, int]:
    shrink = math.sqrt(frames * height * width / pixels)
    return (
        max(factor, math.floor(height / shrink / factor) * factor),
        max(factor, math.floor(width / shrink / factor) * factor),
    )


def n_tokens(grid: tuple[int, int, int], merge: int) -> int:
    """One for each merge x merge block of a (t, h, w) grid of patches."""
    return grid[0] * (grid[1] // merge) * (grid[2] // merge)
