"""Block tables as rows of one array that is kept between steps: a step appends what is new, and gathers its rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(slots=True, eq=False)
class Seat:
    """A row of the array, for as long as one sequence has blocks; whoever gets the row next has a seat of its own."""

    row: int
    filled: int = 0  # entries of the row that are written


class Tables:
    def __init__(self, rows: int, width: int) -> None:
        """rows: sequences that have blocks at once; width: blocks of the longest."""
        self._rows = np.zeros((rows, width), np.int32)

    def append(self, seat: Seat, table: Sequence[int]) -> int:
        """Write what `table` has grown by since the last call for this seat. -> its row"""
        if seat.filled < len(table):
            self._rows[seat.row, seat.filled : len(table)] = table[seat.filled :]
            seat.filled = len(table)
        return seat.row

    def gather(self, rows: Sequence[int], out: np.ndarray) -> None:
        """out: int32 [rows, width] of at most the array's width; entries behind a table's end are never followed."""
        # "clip", since numpy would buffer `out` where it has to raise for a row that is none.
        self._rows[:, : out.shape[1]].take(rows, 0, out, "clip")
