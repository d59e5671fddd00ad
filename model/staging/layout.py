"""Which arrays a step has and how large they are, in the order in which they are packed."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from model.staging.packing import Field


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Rows behind those of a decode step, so that it has the sizes of one that was captured."""

    rows: int  # with the padding
    width: int  # of the block tables
    block: int  # that nobody reads: padding rows write from here on, each at a slot of its own
    block_size: int  # tokens

    def fields(self) -> list[Field]:
        """Those of the padded step."""
        return step_fields(tokens=self.rows, sequences=self.rows, width=self.width, samples=self.rows)

    def write(self, host: Mapping[str, np.ndarray], first: int) -> None:
        """Into the arrays of `fields`, from row `first` on."""
        host["ids"][first:], host["positions"][:, first:] = 0, 0
        host["slots"][first:] = np.arange(self.rows - first) + self.block * self.block_size
        host["block_tables"][first:] = self.block
        host["sample_rows"][first:] = np.arange(first, self.rows)


def step_fields(*, tokens: int, sequences: int, width: int, samples: int) -> list[Field]:
    """What the forward pass reads; first in every step, so that a decode step's addresses follow from its sizes.

    width: of the block tables; samples: rows whose logits are wanted. The fields of a ForwardBatch say what they mean.
    """
    return [
        Field("ids", "int64", (tokens,)),
        Field("positions", "int64", (3, tokens)),
        Field("slots", "int64", (tokens,)),
        Field("sample_rows", "int64", (samples,)),
        Field("block_tables", "int32", (sequences, width)),
    ]
