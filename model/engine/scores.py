"""What the model thinks of a prompt's own tokens: log-probabilities, computed a few rows at a time."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from model.engine.messages import Token
from model.engine.plan import Plan
from model.engine.scheduler import Scheduler


def score(
    plan: Plan, sequences: Scheduler, states: Tensor, logits_of: Callable[[Tensor], Tensor], max_rows: int
) -> dict[str, tuple[Token, ...]]:
    """By request: for each token that a chunk scores the one that follows it in the prompt, with its log-probability.

    states: [R, hidden] of the scored tokens, in the order of the chunks; logits_of: [r, hidden] -> float32 [r, vocab],
    called with at most `max_rows` rows: a whole prompt's logits would be gigabytes.
    """
    found: dict[str, tuple[Token, ...]] = {}
    row = 0
    for chunk in plan.chunks:
        first, last = chunk.scored
        if first == last:
            continue
        sequence = sequences[chunk.key]
        targets = torch.from_numpy(sequence.ids[first + 1 : last + 1]).to(states.device)
        rows = states[row : row + last - first]
        row += last - first
        parts = zip(rows.split(max_rows), targets.split(max_rows), strict=True)
        width = sequence.sampling.top_logprobs
        found[chunk.request_id] = tuple(token for part, ids in parts for token in _tokens(logits_of(part), ids, width))
    return found


def _tokens(logits: Tensor, ids: Tensor, width: int) -> Iterator[Token]:
    """logits: float32 [r, vocab]; ids: int64 [r], what follows each row."""
    logprobs = logits.log_softmax(-1)
    own = logprobs.gather(1, ids[:, None])[:, 0].tolist()
    values, top = logprobs.topk(width, dim=-1)
    for token_id, logprob, likeliest, theirs in zip(ids.tolist(), own, top.tolist(), values.tolist(), strict=True):
        yield Token(id=token_id, logprob=logprob, top=tuple(zip(likeliest, theirs, strict=True)))
