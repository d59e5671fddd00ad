"""Sampling by itself: rows and their logits in, tokens out, with the arrays packed as a step packs them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.engine.messages import Token
from model.engine.sampling import sampler
from model.engine.sampling.logits_processors import apply_rules as apply
from model.engine.sampling.rows import Row, SamplingRows
from model.staging.layout import SamplingArrays, forward_layout, in_order, sampling_arrays
from model.staging.packing import Packer
from model.staging.streams import open_streams


def sample(
    logits: Tensor, rows: Sequence[Row], banned: Tensor | None = None, masks: tuple[Tensor, Tensor] | None = None,
    *, behind: bool = False,
) -> list[Token | None]:  # fmt: skip
    """A token for each row of float32 logits [S, vocab], in place; behind: as on a device."""
    asked = SamplingRows(rows, logits.shape[1])
    arrays = _sent(asked, logits.device)
    found = sampler.sample(logits, asked.metadata, arrays, banned, masks, behind=behind)
    return sampler.tokens_of(found.numpy(), asked.metadata)


def apply_rules(logits: Tensor, rows: Sequence[Row]) -> None:
    """In place."""
    apply(logits, _sent(SamplingRows(rows, logits.shape[1]), logits.device))


def _sent(asked: SamplingRows, device: torch.device) -> SamplingArrays[Tensor]:
    layout = in_order(forward_layout(tokens=1, sequences=1, width=1, samples=1), asked.metadata.layout())
    packing = Packer(open_streams(device), 1 << 12).open(layout)
    asked.write(sampling_arrays(packing.host))
    return sampling_arrays(packing.send())
