"""Changes logits before a token is sampled: bias, penalties, ids that min_tokens and bad words forbid, allowed ids.

Order and rules are those of transformers' logits processors; OpenAI's penalties follow the repetition penalty. What the
rows ask for comes as arrays of places in the logits of the whole batch (model/engine/sampling/rows.py).
"""

import numpy as np
import torch
from torch import Tensor

from model.staging.layout import SamplingArrays

BITS = (np.uint32(1) << np.arange(32, dtype=np.uint32)).view(np.int32)  # of a mask's word, by id; the last is its sign
_MASKS = 32  # rows whose bits are unpacked at once: as many bytes as their logits have


def apply_rules(
    logits: Tensor,
    arrays: SamplingArrays[Tensor],
    banned: Tensor | None = None,
    masks: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Change float32 logits [S, vocab] in place by what rows ask for.

    banned: ids that are for no row, int64 [n]; or float32 [vocab] with -inf at those and 0 elsewhere, which a device
    adds in place where it would fill them by a copy of all logits.
    masks: int32 [n, words] for the rows `arrays.masked`, or for all, where bit i of a row says whether id i may be
    drawn; and BITS, int32 [32], or its first eight as uint8 [8]. Then bytes are compared in the place of words: less
    for a CPU, and what an NPU leaves to its slow processor (docs/npu.md).
    """
    flat = logits.view(-1)
    if arrays.biased is not None and arrays.bias is not None:
        flat.index_add_(0, arrays.biased, arrays.bias)
    if arrays.penalised is not None and arrays.penalties is not None:
        # row 0: by what a logit is multiplied or divided; row 1: what is then taken off
        _penalise(flat, arrays.penalised, *arrays.penalties.unbind(0))
    if arrays.forbidden is not None:
        flat.index_fill_(0, arrays.forbidden, -torch.inf)
    if arrays.allowed is not None and arrays.restricted is not None:
        kept = flat.index_select(0, arrays.allowed)
        logits.index_fill_(0, arrays.restricted, -torch.inf)
        flat.index_copy_(0, arrays.allowed, kept)
    if masks is not None:
        of_rows, bits = masks
        for first in range(0, len(of_rows), _MASKS):
            _mask(logits, of_rows[first : first + _MASKS], bits, arrays.masked, first)
    if banned is not None and len(banned):
        if banned.is_floating_point():
            logits.add_(banned)
        else:
            logits.index_fill_(1, banned, -torch.inf)


def _mask(logits: Tensor, masks: Tensor, bits: Tensor, rows: Tensor | None, first: int) -> None:
    """masks: int32 [k, words] of `rows` from the first-th on, or of all rows."""
    n = len(masks)
    left_out = masks.view(bits.dtype)[:, :, None].bitwise_and(bits).eq(0).view(n, -1)[:, : logits.shape[1]]
    if rows is None:
        logits[first : first + n].masked_fill_(left_out, -torch.inf)
    else:
        index = rows[first : first + n]
        logits.index_copy_(0, index, logits.index_select(0, index).masked_fill_(left_out, -torch.inf))


def _penalise(flat: Tensor, places: Tensor, factor: Tensor, less: Tensor) -> None:
    """places: int64 [k], no place twice; factor, less: float32 [k]"""
    found = flat.index_select(0, places)
    found = torch.where(found < 0, found * factor, found / factor) - less
    flat.index_copy_(0, places, found)
