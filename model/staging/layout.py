"""Which arrays a step has and how large they are, in the order in which they are packed."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Generic, TypeVar

import numpy as np
from torch import Tensor

from model.forward_batch import ForwardBatch
from model.staging.packing import Field

Array = TypeVar("Array", covariant=True)
"""np.ndarray on the host, Tensor on the device, Field where only sizes are known."""


@dataclass(slots=True)
class ForwardArrays(Generic[Array]):
    """What the forward pass reads; the fields of a ForwardBatch say what those of its names mean.

    The first five are in every step, so that a decode step's addresses follow from its sizes.
    """

    ids: Array  # int64 [T]
    positions: Array  # int64 [3, T]
    slots: Array  # int64 [T]
    sample_rows: Array  # int64 [S]: what is sampled from, then what prompts are scored from
    block_tables: Array  # int32 [B, width]
    media_rows: Array | None = None  # int64 [M]
    scored: Array | None = None  # int64 [R]: ids that prompts go on with, whose log-probabilities are wanted
    copies: Array | None = None  # int64 [2, n]: blocks (from, to), copied behind the forward pass
    prev_samples: Array | None = None  # int64 [2, n]: (row of `ids`, row of the last step's samples that it is)


@dataclass(slots=True)
class SamplingArrays(Generic[Array]):
    """What logit rules and the sampler read; None where no row asks for it."""

    biased: Array | None = None  # int64 [n]: places in the flat logits
    bias: Array | None = None  # float32 [n]
    penalised: Array | None = None  # int64 [n]: places
    penalties: Array | None = None  # float32 [2, n]: a factor, and what is taken off
    forbidden: Array | None = None  # int64 [n]: places
    allowed: Array | None = None  # int64 [n]: places
    restricted: Array | None = None  # int64 [n]: rows that have no other places than `allowed`
    masked: Array | None = None  # int64 [n]: the rows that have a mask, where some rows have none
    numbers: Array | None = None  # float32 [5, R]: temperature, the random number, top_k, top_p, min_p
    random_rows: Array | None = None  # int64 [R]: the rows of `numbers`, where some rows take the likeliest


N_FORWARD = len(fields(ForwardArrays))
_forward = attrgetter(*[field.name for field in fields(ForwardArrays)])
_sampling = attrgetter(*[field.name for field in fields(SamplingArrays)])


def in_order(forward: ForwardArrays[Array], sampling: SamplingArrays[Array] | None = None) -> list[Array | None]:
    """All arrays in the order in which they are packed. sampling: None where no row asks for any."""
    found = [*_forward(forward)]
    return found if sampling is None else [*found, *_sampling(sampling)]


def packed_bytes(forward: ForwardArrays[Field]) -> int:
    """Bytes that these fields take together."""
    return sum(field.nbytes for field in in_order(forward) if field is not None)


def forward_arrays(found: Sequence[Array | None]) -> ForwardArrays[Array]:
    """The forward pass's part of what `in_order` gave."""
    return ForwardArrays(*found[:N_FORWARD])  # type: ignore[arg-type]  # the first five are never None


def sampling_arrays(found: Sequence[Array | None]) -> SamplingArrays[Array]:
    """The sampler's part of what `in_order` gave."""
    return SamplingArrays(*found[N_FORWARD:])


def forward_layout(
    *, tokens: int, sequences: int, width: int, samples: int,
    media_rows: int = 0, scored: int = 0, copies: int = 0, prev_samples: int = 0,
) -> ForwardArrays[Field]:  # fmt: skip
    """width: of the block tables; samples: rows whose logits are wanted; the others: how many there are of each."""
    return ForwardArrays(
        ids=Field("int64", (tokens,)),
        positions=Field("int64", (3, tokens)),
        slots=Field("int64", (tokens,)),
        sample_rows=Field("int64", (samples,)),
        block_tables=Field("int32", (sequences, width)),
        media_rows=Field("int64", (media_rows,)) if media_rows else None,
        scored=Field("int64", (scored,)) if scored else None,
        copies=Field("int64", (2, copies)) if copies else None,
        prev_samples=Field("int64", (2, prev_samples)) if prev_samples else None,
    )


def forward_batch(
    arrays: ForwardArrays[Tensor], media_embeds: Tensor | None = None,
    *, q_lens: tuple[int, ...], kv_lens: tuple[int, ...], prompt_lens: tuple[int, ...],
) -> ForwardBatch:  # fmt: skip
    """The network's part of a step, on the device."""
    return ForwardBatch(
        ids=arrays.ids,
        positions=arrays.positions,
        media_rows=arrays.ids[:0] if arrays.media_rows is None else arrays.media_rows,
        media_embeds=media_embeds,
        slots=arrays.slots,
        block_tables=arrays.block_tables,
        q_lens=q_lens,
        kv_lens=kv_lens,
        sample_rows=arrays.sample_rows,
        prompt_lens=prompt_lens,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Rows behind those of a decode step, so that it has the sizes of one that was captured."""

    rows: int  # with the padding
    width: int  # of the block tables
    block: int  # that nobody reads: padding rows write from here on, each at a slot of its own
    block_size: int  # tokens

    def layout(self) -> ForwardArrays[Field]:
        """The layout of the padded step."""
        return forward_layout(tokens=self.rows, sequences=self.rows, width=self.width, samples=self.rows)

    def write(self, host: ForwardArrays[np.ndarray], first: int) -> None:
        """Write padding into the arrays of `layout`, from row `first` on."""
        host.ids[first:], host.positions[:, first:] = 0, 0
        host.slots[first:] = np.arange(self.rows - first) + self.block * self.block_size
        host.block_tables[first:] = self.block
        host.sample_rows[first:] = np.arange(first, self.rows)
