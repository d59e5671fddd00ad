"""Time-aligned positions by hand: what counts on, what stands still, who shares a place."""

import time
from collections.abc import Sequence

import numpy as np

from model.grids.positions import (
    Grid,
    TimeScale,
    audio_positions,
    chunks,
    interleave,
    interleaved_block,
    mrope_positions,
    single_block,
    vision_positions,
)
from tests.tables import each_of

RHYTHM = TimeScale()


def test_text_counts_on() -> None:
    positions, delta = mrope_positions(5, [])
    assert positions.tolist() == [[0, 1, 2, 3, 4]] * 3 and positions.dtype == np.int32 and delta == 0


def test_a_picture_stands_still_and_a_video_moves_by_seconds() -> None:
    assert vision_positions((1, 4, 6), RHYTHM).tolist() == [[0] * 6, [0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    assert vision_positions((3, 2, 2), RHYTHM, seconds_per_grid=0.5).tolist() == [[0, 12, 25], [0] * 3, [0] * 3]
    assert (
        vision_positions((2, 2, 2), TimeScale(per_second=10, merge=1), seconds_per_grid=1.0)[0].tolist()
        == [0] * 4 + [10] * 4
    )


def test_frames_lie_where_float32_puts_them() -> None:
    """In float64 0.28 * 25 is 7.000000000000001; in float32 it is 7 exactly, and 0.12 * 25 is 3."""
    for seconds in (0.28, 0.12, 0.04, 1 / 3, 0.56):
        expected = [int(np.float32(np.float32(i) * np.float32(seconds)) * np.float32(25)) for i in range(40)]
        assert vision_positions((40, 2, 2), RHYTHM, seconds_per_grid=seconds)[0].tolist() == expected


def laid_out(
    n: int, starts: Sequence[int], grids: Sequence[Grid], steps: Sequence[float] | None = None
) -> tuple[np.ndarray, int]:
    """Pictures and videos without a second of their own, as models do that do not hear; `steps` between grids."""
    time_scale = TimeScale(per_second=1)
    moves = [
        vision_positions(grid, time_scale, seconds_per_grid=steps[i] if steps else 1) for i, grid in enumerate(grids)
    ]
    return mrope_positions(n, [single_block(start, move) for start, move in zip(starts, moves, strict=True)])


def test_a_picture_between_texts() -> None:
    # 2 text tokens, an image of 2 x 3 blocks at position 2, 2 text tokens from 2 + max(2, 3) = 5
    positions, delta = laid_out(10, [2], [(1, 4, 6)])
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]
    assert delta == 7 - 10 and positions.dtype == np.int32


def test_two_pictures_side_by_side_and_one_at_the_end() -> None:
    positions, delta = laid_out(3, [0, 1], [(1, 2, 2), (1, 2, 4)])
    assert positions.tolist() == [[0, 1, 1], [0, 1, 1], [0, 1, 2]] and delta == 0


def test_a_video_advances_in_time_and_text_follows_its_greatest_position() -> None:
    # three grids of 1 x 2 blocks, 2.5 apart on t: floor(0, 2.5, 5) -> text from 1 + 6
    positions, delta = laid_out(8, [1], [(3, 2, 4)], [2.5])
    assert positions.tolist() == [
        [0, 1, 1, 3, 3, 6, 6, 7],
        [0, 1, 1, 1, 1, 1, 1, 7],
        [0, 1, 2, 1, 2, 1, 2, 7],
    ]
    assert delta == 0


def test_steps_are_multiplied_in_float32() -> None:
    # 0.7 is a little less in float32, and ten times that rounds up to exactly 7; in float64 it would be 6.
    positions, delta = laid_out(11, [0], [(11, 2, 2)], [0.7])
    assert positions[0].tolist() == [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7] and delta == 8 - 11


def test_a_long_prompt_costs_milliseconds() -> None:
    def seconds() -> float:
        start = time.thread_time()
        laid_out(30_500, [10 + i * 1500 for i in range(20)], [(1, 76, 76)] * 20)  # 1444 tokens each
        return time.thread_time() - start

    assert min(seconds() for _ in range(5)) < 0.05


def test_media_in_a_prompt() -> None:
    """Two words, a picture of 2 x 3 tokens, a word, a sound of 4, a word."""
    blocks = [single_block(2, vision_positions((1, 4, 6), RHYTHM)), single_block(9, audio_positions(4))]
    positions, delta = mrope_positions(14, blocks)
    assert positions[0].tolist() == [0, 1, 2, 2, 2, 2, 2, 2, 5, 6, 7, 8, 9, 10]
    assert positions[2].tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert delta == 11 - 14


def test_chunks_of_two_seconds() -> None:
    assert chunks(np.arange(120), RHYTHM) == [(0, 50), (50, 100), (100, 120)]
    assert chunks(np.arange(50), RHYTHM) == [(0, 50)]
    assert chunks(np.repeat([0, 25, 50, 75], 3), RHYTHM) == [(0, 6), (6, 12)]
    assert chunks(np.arange(6), TimeScale(per_second=2, chunk_seconds=1)) == [(0, 2), (2, 4), (4, 6)]
    # A step over several chunks ends one at each token, until they have caught up.
    assert chunks(np.repeat([0, 200], 6), RHYTHM) == [(0, 6), (6, 7), (7, 8), (8, 9), (9, 12)]


@each_of(
    ("grids", "heard", "pieces"),
    [
        (1, 10, [(False, 0, 1), (True, 0, 10)]),
        (4, 60, [(False, 0, 2), (True, 0, 50), (False, 2, 4), (True, 50, 60)]),
        (2, 120, [(False, 0, 2), (True, 0, 50), (True, 50, 100), (True, 100, 120)]),
        (6, 10, [(False, 0, 2), (True, 0, 10), (False, 2, 4), (False, 4, 6)]),
    ],
)
def test_sight_and_sound_take_turns(grids: int, heard: int, pieces: list[tuple[bool, int, int]]) -> None:
    assert interleave(vision_positions((grids, 2, 2), RHYTHM), audio_positions(heard), RHYTHM) == pieces


def test_marks_around_a_video_with_sound_share_their_places() -> None:
    """A word and both opening marks, two grids of one token and 60 of sound, both closing marks, a word."""
    block = interleaved_block(3, vision_positions((2, 2, 2), RHYTHM), audio_positions(60), RHYTHM)
    positions, delta = mrope_positions(3 + 62 + 3, [block])
    assert positions[0, :5].tolist() == [0, 1, 1, 2, 27]  # the grids, one second apart
    assert positions[0, 5:65].tolist() == list(range(2, 62))
    assert positions[0, 65:].tolist() == [62, 62, 63] and delta == 64 - 68


def test_text_goes_on_behind_the_last_piece_and_answers_behind_everything() -> None:
    """A video as wide as 40 tokens whose sound ends first in width: the text after it lies within the video."""
    block = interleaved_block(2, vision_positions((1, 2, 80), RHYTHM), audio_positions(10), RHYTHM)
    positions, delta = mrope_positions(2 + 50 + 3, [block])
    assert positions[2].max() == 1 + 39 and positions[:, -1].tolist() == [12, 12, 12]
    assert delta == 41 - 55
