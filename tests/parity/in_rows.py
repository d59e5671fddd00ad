"""Pictures in layouts whose rows of patches each have an end of their own among the ids."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor, from_numpy

ROW_END = 7  # which id it is makes no difference to a network


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    rows: int
    columns: int

    def ids(self, pad: int) -> list[int]:
        return ([pad] * self.columns + [ROW_END]) * self.rows

    def patches(self, side: int, rng: np.random.Generator) -> Tensor:
        """Random uint8 [rows * columns, 3 * side * side], columns (channel, y, x)."""
        return from_numpy(rng.integers(0, 256, (self.rows * self.columns, 3 * side**2), dtype=np.uint8))


def hf_rows(pixels: Tensor) -> Tensor:
    """Patches uint8 [n, (channel, y, x)] as transformers' model takes them: float32 [n, (y, x, channel)]."""
    patches = pixels.view(len(pixels), 3, -1).transpose(1, 2).flatten(1).float()
    return (patches / 255 - 0.5) / 0.5
