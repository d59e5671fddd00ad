"""Windows of a grid of tokens: the order in which each lies together, and how long each is. Knows no tensors."""

import numpy as np


def window_order(rows: int, columns: int, side: int) -> tuple[np.ndarray, tuple[int, ...]]:
    """(int64 [rows * columns], lengths) of the windows of `side` x `side` tokens over a grid that lies row by row.

    Taking the grid's tokens in that order puts each window's together, itself row by row; lengths say how many each
    has. Windows at the lower and right edges may be smaller, none is empty. Those of equal length are neighbours:
    windows do not see each other, so their order is free, and neighbours of one length are computed together.
    """
    tokens = np.arange(rows * columns).reshape(rows, columns)
    windows = [
        tokens[top : top + side, left : left + side].ravel()
        for top in range(0, rows, side)
        for left in range(0, columns, side)
    ]
    windows.sort(key=len, reverse=True)
    return np.concatenate(windows), tuple(len(window) for window in windows)
