"""The largest picture and video that limits let through, for the memory profile."""

import math

from configs.serve import MediaConfig
from tokenization.chat.options import MediaOptions
from tokenization.media.frame_sampling import FRAME_FACTOR, PUBLISHED, FrameRules, FrameSize
from tokenization.media.smart_resize import MAX_ASPECT

_LARGE = 1 << 14  # a side that every bound shrinks


def largest_area(cells: int) -> tuple[int, int]:
    """(rows, columns) within MAX_ASPECT of the largest product <= cells; of equal ones the most square. cells >= 1."""
    found = (1, 1)
    for rows in range(math.isqrt(cells), 0, -1):
        columns = min(cells // rows, MAX_ASPECT * rows)
        if rows * columns > found[0] * found[1]:
            found = (rows, columns)
    return found


def largest_video(
    limits: MediaConfig, max_tokens: int, rules: FrameRules = PUBLISHED, *, factor: int
) -> tuple[int, tuple[int, int]] | None:
    """(temporal grids, (height, width)) of the square video with most tokens of `factor` x `factor` pixels, or None."""
    # A request's minimum lifts a frame above its share of the published total.
    options = MediaOptions(min_pixels=limits.max_pixels, max_pixels=limits.max_pixels)
    best = (0, 0, 0)  # tokens, grids, tokens along a side
    for grids in range(1, max(1, limits.max_frames // FRAME_FACTOR) + 1):
        height, width = FrameSize(
            height=_LARGE,
            width=_LARGE,
            n=grids * FRAME_FACTOR,
            options=options,
            limits=limits,
            rules=rules,
            factor=factor,
        ).find()
        side = min(min(height, width) // factor, math.isqrt(max_tokens // grids))
        best = max(best, (grids * side**2, grids, side))
    tokens, grids, side = best
    return (grids, (side * factor, side * factor)) if tokens else None
