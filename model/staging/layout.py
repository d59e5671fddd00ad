"""Which arrays a step has and how large they are, in the order in which they are packed."""

from model.staging.packing import Field


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
