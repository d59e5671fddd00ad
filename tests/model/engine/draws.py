"""Sampling by itself: rows and their logits in, tokens out, with the arrays packed as a step packs them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from model.engine import sampler
from model.engine.messages import Token
from model.engine.rules import Row, Rules
from model.engine.rules import apply_rules as apply
from model.staging.packing import Packer
from model.staging.streams import open_streams


def sample(
    logits: Tensor, rows: Sequence[Row], banned: Tensor | None = None, *, behind: bool = False
) -> list[Token | None]:
    """A token for each row of float32 logits [S, vocab], in place; behind: as on a device."""
    draws = sampler.Draws(rows, logits.shape[1])
    arrays = _sent(draws, logits.device)
    return sampler.tokens_of(sampler.sample(logits, draws, arrays, banned, behind=behind).numpy(), draws)


def apply_rules(logits: Tensor, rows: Sequence[Row]) -> None:
    """In place."""
    rules = Rules(logits.shape[1])
    for i, row in enumerate(rows):
        if row.history is not None:
            rules.add(i, row.sampling, row.history)
    apply(logits, _sent(rules, logits.device))


def _sent(asked: sampler.Draws | Rules, device: torch.device) -> dict[str, Tensor]:
    packing = Packer(open_streams(device), 1 << 12).open(asked.fields())
    asked.write(packing.host)
    return packing.send()
