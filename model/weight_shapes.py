"""Tensors as shapes alone: what a network asks for without a checkpoint's weights, or as their headers have it."""

from collections.abc import Mapping

import torch
from torch import Tensor

from configs.checkpoint import Checkpoint
from model.weight_tensors import WHOLE, Cut
from model.weights import Weights

META = torch.device("meta")


class HeaderWeights(Weights):
    """Tensors by the headers of their files, of which no other byte is read."""

    def __init__(
        self, checkpoint: Checkpoint, renames: Mapping[str, str], dtype: torch.dtype, skips: tuple[str, ...]
    ) -> None:  # fmt: skip
        """Raises CheckpointError, as of Weights."""
        super().__init__(checkpoint, renames, dtype, META, skips)

    def equal(self, one: str, other: str, rows: range | None = None) -> bool:
        """As config.json says it of tied tables: to compare them takes their bytes."""
        return True


class AskedWeights(Weights):
    """Gives whatever a network asks for, and takes note of it: no file is opened."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.shapes: dict[str, tuple[int, ...]] = {}  # by name, of whole tensors
        self.cuts: dict[str, Cut] = {}
        self.nbytes: dict[str, int] = {}

    def has(self, name: str) -> bool:
        return False

    def shape_of(self, name: str) -> tuple[int, ...] | None:
        return None

    def take(
        self, name: str, shape: tuple[int, ...] | None = None, dtype: torch.dtype | None = None, cut: Cut = WHOLE
    ) -> Tensor:
        """Once of each name, and by its shape."""
        assert shape is not None and name not in self.shapes
        taken = torch.empty(cut.shape(shape), dtype=dtype or self._dtype, device=META)
        self.shapes[name], self.cuts[name] = shape, cut
        self.count(name, taken)
        return taken

    def check_blocks(self, prefix: str, n: int) -> None:
        """As many as are asked for."""

    def drop(self, name: str) -> None:
        """Nothing is there."""

    def drop_under(self, prefix: str) -> None:
        """Nothing is there."""

    def finish(self) -> None:
        """All is asked for."""
