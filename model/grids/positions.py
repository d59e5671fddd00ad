"""The m-rope positions of a prompt, and the delta of generated tokens; video and sound share one time axis."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeScale:
    per_second: float = 25  # positions of a second
    chunk_seconds: float = 2  # of video, then of sound, in turns
    merge: int = 2  # patches along each side of a token

    @property
    def chunk(self) -> int:
        """Positions of one chunk."""
        return int(self.per_second * self.chunk_seconds)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Block:
    """The tokens of one medium, or of a video and its sound, with positions counted from the block's own start."""

    start: int  # index of the first token
    positions: np.ndarray  # int32 [3, n]: t, h, w
    last: int  # the greatest position of its last piece: what follows goes on after it
    doubled: bool = False  # two marks before it and two after it share one position each


def vision_positions(grid: Grid, time_scale: TimeScale, *, seconds_per_grid: float = 1.0) -> np.ndarray:
    """int32 [3, tokens] of a picture or video: t by the seconds between its temporal grids, h and w by its tokens."""
    t, h, w = grid[0], grid[1] // time_scale.merge, grid[2] // time_scale.merge
    # In float32 and in this order, as the reference counts: another rounding would move whole frames.
    seconds = np.arange(t, dtype=np.float32) * np.float32(seconds_per_grid)
    steps = (seconds * np.float32(time_scale.per_second)).astype(np.int32)
    found = np.empty((3, t, h, w), np.int32)
    found[0] = steps[:, None, None]
    found[1] = np.arange(h)[:, None]
    found[2] = np.arange(w)
    return found.reshape(3, -1)


def audio_positions(n: int) -> np.ndarray:
    """int32 [3, n]: a token of sound moves on all axes."""
    return np.broadcast_to(np.arange(n, dtype=np.int32), (3, n))


def chunks(steps: np.ndarray, time_scale: TimeScale) -> list[tuple[int, int]]:
    """(start, stop) of each chunk of tokens at these ascending times: it ends at the next multiple of its length."""
    found: list[tuple[int, int]] = []
    start, end = 0, time_scale.chunk
    # As in the reference each end looks for one multiple only: after a gap of several chunks single tokens end chunks
    # until these have caught up.
    for i, step in enumerate(steps.tolist()):
        if step >= end:
            found.append((start, i))
            start, end = i, end + time_scale.chunk
    return [*found, (start, len(steps))]


def interleave(seen: np.ndarray, heard: np.ndarray, time_scale: TimeScale) -> list[tuple[bool, int, int]]:
    """(is sound, start, stop) of each piece, chunks in turns. seen, heard: positions int32 [3, n]."""
    of_sight, of_sound = chunks(seen[0], time_scale), chunks(heard[0], time_scale)
    found: list[tuple[bool, int, int]] = []
    for i in range(max(len(of_sight), len(of_sound))):
        if i < len(of_sight):
            found.append((False, *of_sight[i]))
        if i < len(of_sound):
            found.append((True, *of_sound[i]))
    return found


def single_block(start: int, positions: np.ndarray) -> Block:
    return Block(start=start, positions=positions, last=int(positions.max()))


def interleaved_block(start: int, seen: np.ndarray, heard: np.ndarray, time_scale: TimeScale) -> Block:
    """The block of a video with sound, which begin at the same time; `start` is after both opening marks."""
    pieces = [(heard if sound else seen)[:, at:stop] for sound, at, stop in interleave(seen, heard, time_scale)]
    return Block(start=start, positions=np.concatenate(pieces, axis=1), last=int(pieces[-1].max()), doubled=True)


def mrope_positions(n: int, blocks: Sequence[Block]) -> tuple[np.ndarray, int]:
    """int32 [3, n], and the delta: a token generated at index i has position i + delta, one past the greatest of all.

    Blocks ascend. Text counts on by one on all axes; after a block it begins one past the block's last piece.
    """
    positions = np.empty((3, n), np.int32)
    at, position = 0, 0  # index of the next token, its position
    for block in blocks:
        text = np.arange(position, position + block.start - at, dtype=np.int32)
        if block.doubled:
            text[-1] -= 1
        positions[:, at : block.start] = text
        position += block.start - at - block.doubled
        at = block.start + block.positions.shape[1]
        positions[:, block.start : at] = block.positions + position
        position += block.last + 1
        if block.doubled:  # the first of the two marks after it is written here, the second with the text
            positions[:, at] = position
            at += 1
    positions[:, at:] = np.arange(position, position + n - at)
    return positions, int(positions.max(initial=-1)) + 1 - n
