"""What each rank asks of a checkpoint, without the checkpoint's weights; and whether all of it is asked for once."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from configs.checkpoint import Checkpoint
from model.forward_batch import KVSpec
from model.ops.collectives import Ranks
from model.ops.load import load_ops
from model.registry import family_of
from model.weight_shapes import META, AskedWeights
from model.weight_tensors import WHOLE, Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """One rank's model."""

    asked: AskedWeights
    kv: KVSpec


def built(path: Path, rank: int, n: int) -> Built:
    """In bfloat16. Raises CheckpointError where so many ranks do not share it."""
    checkpoint, asked = Checkpoint(path), AskedWeights(torch.bfloat16)
    model = family_of(checkpoint).build(
        checkpoint, asked, load_ops(META, torch.bfloat16, ranks=Ranks(rank=rank, n=n))
    )  # fmt: skip
    return Built(asked=asked, kv=model.kv)


def times_read(ranks: Sequence[AskedWeights]) -> Mapping[str, int]:
    """By name how many ranks read each element of a tensor. Raises ValueError where not all are read as often."""
    return {name: _times([asked.cuts[name] for asked in ranks], shape) for name, shape in ranks[0].shapes.items()}


def elements(asked: AskedWeights) -> Mapping[str, int]:
    """That a rank reads of each tensor."""
    return {name: math.prod(asked.cuts[name].shape(shape)) for name, shape in asked.shapes.items()}


def _times(cuts: Sequence[Cut], shape: tuple[int, ...]) -> int:
    if all(cut == WHOLE for cut in cuts):
        return len(cuts)
    if any(cut.columns for cut in cuts):
        spans, size = [cut.columns or range(shape[1]) for cut in cuts], shape[1]
    else:
        spans, size = (
            [rows for cut in cuts for rows in ((range(shape[0]),) if cut.rows is None else cut.rows)],
            shape[0],
        )
    counts = np.zeros(size, np.int64)
    for span in spans:
        counts[span.start : span.stop] += 1
    (n,) = set(counts.tolist())
    return int(n)
