"""Pictures without a tower: each patch goes straight to one embedding of the decoder."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.net.vision import PatchEmbed, joined


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchProjection:
    embed: PatchEmbed  # 3 * patch^2 -> hidden
    patch: int  # side of a patch in pixels

    @property
    def dtype(self) -> torch.dtype:
        return torch.uint8

    def input_shape(self, grid: tuple[int, int, int]) -> tuple[int, ...]:
        """Of one picture of `grid` (1, h, w): patches row by row, columns (channel, y, x)."""
        t, h, w = grid
        return (t * h * w, 3 * self.patch**2)

    def __call__(self, arrays: Sequence[Tensor], grids: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """uint8 `input_shape`, grid (1, h, w) -> [h * w, hidden], of each. Raises ValueError for any other."""
        for pixels, grid in zip(arrays, grids, strict=True):
            if grid[0] != 1 or tuple(pixels.shape) != self.input_shape(grid):
                raise ValueError(f"pixels {list(pixels.shape)} do not fit a picture of {grid} patches")
        return list(self.embed(joined(arrays)).split([len(pixels) for pixels in arrays]))
