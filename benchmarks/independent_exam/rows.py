"""The rows of the exam in the order in which they are asked, and the questions of each by a seed."""

import zlib
from collections.abc import Callable

import numpy as np

from benchmarks.independent_exam import other_rows, picture_rows
from benchmarks.independent_exam.question import Question
from benchmarks.independent_exam.scenes import LOOKS

ROWS: dict[str, Callable[[str, np.random.Generator], Question]] = {
    "count one kind": picture_rows.count_one_kind,
    "JSON": other_rows.as_json,
    "count all": picture_rows.count_all,
    "box": picture_rows.box,
    "shape and colour": picture_rows.shape_and_colour,
    "colour": picture_rows.colour,
    "shape": picture_rows.shape,
    "number": picture_rows.number,
    "two pictures": picture_rows.two_pictures,
    "tool": other_rows.tool,
    "follow-up": other_rows.follow_up,
    "small talk": other_rows.small_talk,
    "Chinese": picture_rows.chinese,
    "beeps": other_rows.beeps,
    "high or low": other_rows.pitch,
    "rises or falls": other_rows.glide,
    "motion": other_rows.motion,
}


def question(row: str, n: int, seed: int) -> Question:
    """The n-th question of a row: the same for the same three, however many are asked; looks take turns."""
    rng = np.random.default_rng([seed, zlib.crc32(row.encode()), n])
    return ROWS[row](LOOKS[n % len(LOOKS)], rng)
