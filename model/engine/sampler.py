"""Logits to tokens, a whole batch at once; what is drawn depends on row, seed and position alone. Scores known tokens.

In the order of transformers' logits processors: model/engine/rules.py, temperature, top_k, top_p, min_p.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from model.engine.messages import SamplingParams, Token
from model.engine.rules import Row, apply_rules

_MIN_TEMPERATURE = 1e-6  # below it float32 cannot tell the distribution from its peak
_MAX_TEMPERATURE = 1e6  # above it all that may be drawn is as good as equally likely, and float32 comes to its end
_PREFIX = 1024  # largest logits looked at first when top_p stands alone: sorting a whole vocabulary costs 50 times that


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of this seed and position: 24 bits, which float32 holds exactly."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, position), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 40) / (1 << 24)


def sample(logits: Tensor, rows: Sequence[Row], banned: Tensor | None = None) -> list[Token | None]:
    """A token for each row of float32 logits [S, vocab], in place; None if it is not finite or has no id left."""
    if not rows:
        return []
    raw = logits.amax(-1)  # [S]; NaN anywhere in a row becomes its maximum
    logprobs = logits.log_softmax(-1) if any(row.sampling.logprobs for row in rows) else None
    apply_rules(logits, rows, banned)
    top, chosen = logits.max(-1)  # [S], [S]
    chosen = torch.where(top.isfinite(), chosen, -1)
    drawn = [i for i, row in enumerate(rows) if row.sampling.temperature > 0]
    if drawn:
        index = _index(drawn, logits)
        peaks = top.index_select(0, index), chosen.index_select(0, index)
        ids = _draw(logits.index_select(0, index), *peaks, [rows[i] for i in drawn])
        chosen = chosen.index_copy(0, index, ids)
    parts = [chosen.to(torch.int32)[:, None], _bits(raw)[:, None]]
    width = max((row.sampling.top_logprobs for row in rows if row.sampling.logprobs), default=0)
    if logprobs is not None:
        parts.append(_bits(logprobs.gather(1, chosen.clamp(min=0)[:, None])))
        if width:
            values, ids = logprobs.topk(width, dim=-1)
            parts += [_bits(values), ids.to(torch.int32)]
    host = torch.cat(parts, dim=1).cpu().numpy()  # [S, 2 | 3 | 3 + 2 * width] int32
    return [_token(host[i], row.sampling, width) for i, row in enumerate(rows)]


def score(
    states: Tensor, ids: Tensor, width: int, logits_of: Callable[[Tensor], Tensor], max_rows: int
) -> tuple[Token, ...]:
    """Tokens that are known already, each with its log-probability and the `width` likeliest in its place.

    states: [R, hidden], what each is predicted from; ids: int64 [R]. logits_of: [r, hidden] -> float32 [r, vocab],
    called with at most `max_rows` rows, since those of a whole prompt would be gigabytes.
    """
    found: list[Token] = []
    for rows, targets in zip(states.split(max_rows), ids.split(max_rows), strict=True):
        logprobs = logits_of(rows).log_softmax(-1)
        own = logprobs.gather(1, targets[:, None])[:, 0].tolist()
        values, top = (part.tolist() for part in logprobs.topk(width, dim=-1))
        for token_id, logprob, likeliest, theirs in zip(targets.tolist(), own, top, values, strict=True):
            found.append(Token(id=token_id, logprob=logprob, top=tuple(zip(likeliest, theirs, strict=True))))
    return tuple(found)


def _draw(logits: Tensor, top: Tensor, likeliest: Tensor, rows: Sequence[Row]) -> Tensor:
    """int64 [R] ids by inverse CDF, -1 where there is none; overwrites logits. top, likeliest: [R] peaks, their ids."""
    temperature = [min(max(row.sampling.temperature, _MIN_TEMPERATURE), _MAX_TEMPERATURE) for row in rows]
    numbers = torch.tensor(
        [temperature, [uniform(row.sampling.seed, row.position) for row in rows]],
        dtype=torch.float32, device=logits.device,
    )  # fmt: skip
    scaled = logits.sub_(top[:, None]).div_(numbers[0][:, None])  # at most 0, so that nothing overflows
    if any(row.sampling.top_k > 0 or row.sampling.top_p < 1 or row.sampling.min_p > 0 for row in rows):
        probabilities = _cut(scaled, [row.sampling for row in rows])
    else:
        probabilities = scaled.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    # A number below 1 times the total stays below the last step of the staircase, so the token that is found always
    # has a probability above 0 where sums are made in order. A device makes them in parallel, and rounding may then
    # raise the staircase at a token of probability 0: that one is not taken.
    total = cumulative[:, -1:]
    found = torch.searchsorted(cumulative, numbers[1][:, None] * total, right=True).clamp_(max=logits.shape[1] - 1)
    found = torch.where(probabilities.gather(1, found) > 0, found, likeliest[:, None])
    return torch.where(total.isfinite() & (total > 0), found, -1)[:, 0]


def _cut(scaled: Tensor, sampling: Sequence[SamplingParams]) -> Tensor:
    """Probabilities [R, vocab], 0 where top_k, top_p or min_p cut, not normalised again. In place on `scaled`."""
    vocab = scaled.shape[1]
    limits = [[min(s.top_k, vocab) if s.top_k > 0 else 0, s.top_p, s.min_p] for s in sampling]
    numbers = torch.tensor(limits, dtype=torch.float32, device=scaled.device).unsqueeze(-1)
    top_k, top_p, min_p = numbers.unbind(1)  # [R, 1] each
    # Every cut is a threshold: equal logits are kept or dropped together, however a sort breaks ties.
    top_p = top_p.clamp(min=torch.finfo(torch.float32).tiny)  # above 0, so that the likeliest token always stays
    order = None
    if any(s.top_k > 0 or s.top_p < 1 for s in sampling):
        alone = any(s.top_p < 1 and s.top_k <= 0 for s in sampling)
        width = min(vocab, max(1, _PREFIX if alone else 1, *(s.top_k for s in sampling)))
        values, order = scaled.topk(width, dim=-1)  # [R, width], falling
        last = values.gather(1, (top_k - 1).clamp(min=0).to(torch.int64))
        scaled.masked_fill_(scaled < torch.where(top_k > 0, last, -torch.inf), -torch.inf)
    probabilities = scaled.softmax(-1)
    floor = torch.zeros_like(top_p)  # [R, 1]: what is less likely is cut
    if order is not None and any(s.top_p < 1 for s in sampling):
        falling = probabilities.gather(1, order)
        before = falling.cumsum(-1) - falling  # the mass in front of each; a token stays while that is below top_p
        # The only reading back from the device: whether the largest were enough. It costs far less than sorting always.
        if alone and width < vocab and not bool(((before[:, -1:] >= top_p) | (top_p >= 1) | (top_k > 0)).all()):
            falling = probabilities.sort(dim=-1, descending=True).values
            before = falling.cumsum(-1) - falling
        smallest = torch.where(before < top_p, falling, torch.inf).amin(-1, keepdim=True)
        floor = torch.where(top_p < 1, smallest, floor)
    if any(s.min_p > 0 for s in sampling):
        floor = torch.maximum(floor, min_p * probabilities.amax(-1, keepdim=True))
    return probabilities.masked_fill_(probabilities < floor, 0)


def _index(rows: list[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, dtype=torch.int64, device=like.device)


def _bits(values: Tensor) -> Tensor:
    """float32 as int32 of the same bits, so that ids and values cross in one copy."""
    return values.contiguous().view(torch.int32)


def _token(row: np.ndarray, sampling: SamplingParams, width: int) -> Token | None:
    """One row of the packed copy: id, maximum, log-probability, top values, top ids."""
    values = row.view(np.float32)
    if row[0] < 0 or not np.isfinite(values[1]):
        return None
    if not sampling.logprobs:
        return Token(id=int(row[0]))
    n = sampling.top_logprobs
    top = zip(row[3 + width : 3 + width + n].tolist(), values[3 : 3 + n].tolist(), strict=True)
    return Token(id=int(row[0]), logprob=float(values[2]), top=tuple(top))
