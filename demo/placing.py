"""Where things lie in a picture: strewn, in a row, or in a grid; never touching, always wholly inside."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Place = tuple[float, float, float]  # x and y of the corner of the box, longer side of the box; pixels


def place(rng: np.random.Generator, size: tuple[int, int], extents: Sequence[tuple[float, float]]) -> list[Place]:
    """A place for each thing in a picture of `size` (width, height).

    `extents` are the (width, height) of the things' boxes at a longer side of 1.
    """
    count = len(extents)
    shares = np.array(extents, dtype=np.float64).reshape(count, 2)
    roll = rng.random()
    if count == 0:
        return []
    if count == 1 or roll < 0.66:
        strewn = _strew(rng, size, shares)
        if strewn is not None:
            return strewn
    return _cells(rng, size, shares, row=roll > 0.84)


def _sides(rng: np.random.Generator, size: tuple[int, int], count: int) -> npt.NDArray[np.float64]:
    """The longer side of each thing, in pixels."""
    short = min(size)
    if count == 1:
        # 12..85 % of the short side, mostly 20..60 %.
        low, high = (0.2, 0.6) if rng.random() < 0.75 else (0.12, 0.85)
        return np.array([max(12.0, short * low * (high / low) ** rng.random())])
    high = min(0.62 * short, 0.62 * float(np.sqrt(size[0] * size[1] / count)))
    low = min(high, max(0.09 * short, 12.0))
    base = float(low * (high / low) ** rng.random() ** 0.7)
    if rng.random() < 0.3:
        return np.full(count, base)
    reach = 1.25 if rng.random() < 0.5 else 2.2
    sides: npt.NDArray[np.float64] = np.clip(base * reach ** rng.uniform(-1, 1, count), low, high)
    return sides


def _gap(rng: np.random.Generator, size: tuple[int, int]) -> float:
    return float(max(3.0, min(size) * rng.uniform(0.015, 0.04)))


def _strew(rng: np.random.Generator, size: tuple[int, int], shares: npt.NDArray[np.float64]) -> list[Place] | None:
    """Random places, the largest first; None if there was no room."""
    gap = _gap(rng, size)
    sides = _sides(rng, size, len(shares))
    for _ in range(4):
        boxes = np.zeros((0, 4))
        found: dict[int, Place] = {}
        for index in np.argsort(-sides, kind="stable").tolist():
            wide, high = shares[index] * sides[index]
            tries = rng.random((24, 2)) * (size[0] - wide - 2, size[1] - high - 2) + 1  # [tries, 2]
            ends = tries + (wide, high)
            clear = (
                (ends[:, None, 0] + gap < boxes[None, :, 0])
                | (tries[:, None, 0] > boxes[None, :, 2] + gap)
                | (ends[:, None, 1] + gap < boxes[None, :, 1])
                | (tries[:, None, 1] > boxes[None, :, 3] + gap)
            ).all(1)  # [tries]
            if not clear.any():
                break
            pick = int(clear.argmax())
            x, y = tries[pick].tolist()
            boxes = np.vstack([boxes, [x, y, x + wide, y + high]])
            found[index] = (x, y, float(sides[index]))
        else:
            return [found[index] for index in range(len(shares))]
        sides = np.minimum(sides, np.maximum(sides * 0.85, max(12.0, 0.09 * min(size))))
    return None


def _cells(
    rng: np.random.Generator, size: tuple[int, int], shares: npt.NDArray[np.float64], *, row: bool
) -> list[Place]:
    """One thing to a cell of a regular grid (or of one row or column, if the things are few), in the order given."""
    count = len(shares)
    columns = max(1, round(float(np.sqrt(count * size[0] / size[1]))))
    columns = min(columns, count)
    if row and count <= 6:
        columns = count if size[0] >= size[1] else 1
    rows = -(-count // columns)
    cell = (size[0] / columns, size[1] / rows)
    gap = min(_gap(rng, size), 0.2 * min(cell))
    most = min(cell) - gap
    share = rng.uniform(0.5, 0.95)
    even, jitter = rng.random() < 0.5, rng.random() < 0.5
    spots = np.arange(columns * rows) if rng.random() < 0.5 else np.sort(rng.permutation(columns * rows)[:count])
    places: list[Place] = []
    for index in range(count):
        spot = int(spots[index])
        side = most * (share if even else float(np.clip(share * rng.uniform(0.7, 1.1), 0.4, 1.0)))
        side = max(side, min(max(12.0, 0.1 * min(size)), most))
        wide, high = (shares[index] * side).tolist()
        room = (cell[0] - gap - wide, cell[1] - gap - high)
        shift = rng.random(2).tolist() if jitter else (0.5, 0.5)
        x = spot % columns * cell[0] + gap / 2 + room[0] * shift[0]
        y = spot // columns * cell[1] + gap / 2 + room[1] * shift[1]
        places.append((x, y, side))
    return places
