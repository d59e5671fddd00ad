"""Logits to tokens, a whole batch at once; each depends on its row, seed and position alone. Scores known tokens.

In the order of transformers: logits_processors.py beside this, temperature, top_k, top_p, min_p. What the rows ask for
travels with the batch (rows.py); the device computes.
"""

import hashlib
import struct
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from model.engine.messages import Token
from model.engine.sampling.logits_processors import apply_rules
from model.engine.sampling.metadata import SamplingMetadata
from model.staging.layout import SamplingArrays

NOT_FINITE, NONE_LEFT = -1, -2  # in the place of an id: NaN or an infinity came; the rules of the row left no id
# Float32 copies of the sampled rows' logits that live at once when a step asks for everything: the logits, their
# log-probabilities, rows by chance, probabilities, a sort's values and (twice as wide) indices, cumulative sums twice.
# Before these, and with fewer: the head's in its dtype; the bits of masks, unpacked (one), with what they cut.
SAMPLER_COPIES = 9
_PAIR = struct.Struct("<qq")  # seed and position
_PREFIX = 1024  # largest logits looked at first when top_p stands alone: sorting a whole vocabulary costs 50 times that


def uniform(seed: int, position: int) -> float:
    """The random number in [0, 1) of this seed and position: 24 bits, which float32 holds exactly."""
    digest = hashlib.blake2b(_PAIR.pack(seed, position), digest_size=8).digest()
    return float(int.from_bytes(digest, "little") >> 40) / (1 << 24)


def sampling_bytes(rows: int, vocab_size: int) -> int:
    """Most that head and `sample` hold at once of so many rows."""
    return SAMPLER_COPIES * rows * vocab_size * torch.float32.itemsize


def sample(
    logits: Tensor, asked: SamplingMetadata, arrays: SamplingArrays[Tensor], banned: Tensor | None = None,
    masks: tuple[Tensor, Tensor] | None = None, *, behind: bool,
) -> Tensor:  # fmt: skip
    """What `tokens_of` reads, int32 [S, n], of float32 logits [S, vocab], in place.

    masks: as of apply_rules. behind: the device runs behind the host, so that nothing is read back.
    """
    raw = logits.amax(-1)  # [S]; NaN anywhere in a row becomes its maximum
    logprobs = logits.log_softmax(-1) if asked.logprobs else None
    apply_rules(logits, arrays, banned, masks)
    top, chosen = logits.max(-1)  # [S], [S]
    index, numbers = arrays.random_rows, arrays.numbers
    if index is not None and numbers is not None:
        peaks = top.index_select(0, index), chosen.index_select(0, index)
        ids = _by_chance(logits.index_select(0, index), *peaks, asked, numbers, behind)
        chosen = chosen.index_copy(0, index, ids)
    elif numbers is not None:
        chosen = _by_chance(logits, top, chosen, asked, numbers, behind)
    chosen_or_none = torch.where(top.isfinite(), chosen, NONE_LEFT)
    ids = torch.where(raw.isfinite(), chosen_or_none, NOT_FINITE).to(torch.int32)[:, None]
    if logprobs is None:
        return ids
    parts = [ids, _bits(logprobs.gather(1, chosen.clamp(min=0)[:, None]))]
    if asked.top_logprobs:
        values, likeliest = logprobs.topk(asked.top_logprobs, dim=-1)
        parts += [_bits(values), likeliest.to(torch.int32)]
    return torch.cat(parts, dim=1)  # [S, 1 | 2 | 2 + 2 * width]: id, log-probability, top values, top ids


def tokens_of(found: np.ndarray, asked: SamplingMetadata) -> list[Token | None]:
    """The token of each row, from what `sample` gave; None where a row was not finite or had no id left."""
    ids = found[:, 0].tolist()
    if not asked.logprobs:
        return [Token(id=token) if token >= 0 else None for token in ids]
    values, width = found.view(np.float32), asked.top_logprobs
    own = values[:, 1].tolist()
    tops, top_ids = values[:, 2 : 2 + width].tolist(), found[:, 2 + width :].tolist()
    tokens: list[Token | None] = []
    for i, n in enumerate(asked.logprobs):
        if ids[i] < 0:
            tokens.append(None)
        elif n < 0:
            tokens.append(Token(id=ids[i]))
        else:
            tokens.append(Token(id=ids[i], logprob=own[i], top=tuple(zip(top_ids[i][:n], tops[i][:n], strict=True))))
    return tokens


def score(
    states: Tensor, ids: Tensor, width: int, logits_of: Callable[[Tensor], Tensor], max_rows: int
) -> list[Tensor]:
    """What `scored_tokens` reads of tokens that are known already, int32 [r, 1 + 2 * width] for every `max_rows` rows.

    states: [R, hidden], what each is predicted from; ids: int64 [R]. logits_of: [r, hidden] -> float32 [r, vocab],
    called with at most `max_rows` rows, since those of a whole prompt would be gigabytes.
    """
    found = []
    for rows, targets in zip(states.split(max_rows), ids.split(max_rows), strict=True):
        logprobs = logits_of(rows).log_softmax(-1)
        values, top = logprobs.topk(width, dim=-1)
        own = logprobs.gather(1, targets[:, None])
        found.append(torch.cat([_bits(own), _bits(values), top.to(torch.int32)], dim=1))
    return found


def scored_tokens(ids: np.ndarray, found: Sequence[np.ndarray], width: int) -> tuple[Token, ...]:
    """Tokens that are known already, each with its log-probability and the `width` likeliest in its place."""
    rows = np.concatenate(found)
    values = rows.view(np.float32)
    own, likeliest = values[:, 0].tolist(), rows[:, 1 + width :].tolist()
    theirs = values[:, 1 : 1 + width].tolist()
    return tuple(
        Token(id=token, logprob=logprob, top=tuple(zip(top, logprobs, strict=True)))
        for token, logprob, top, logprobs in zip(ids.tolist(), own, likeliest, theirs, strict=True)
    )


def _by_chance(
    logits: Tensor, top: Tensor, likeliest: Tensor, asked: SamplingMetadata, numbers: Tensor, behind: bool
) -> Tensor:
    """int64 [R] ids by inverse CDF, NOT_FINITE for none; overwrites logits. top, likeliest: [R] peaks, their ids."""
    temperature, number, top_k, top_p, min_p = numbers[:, :, None].unbind(0)  # [R, 1] each
    scaled = logits.sub_(top[:, None]).div_(temperature)  # at most 0, so that nothing overflows
    if asked.top_k > 0 or asked.top_p or asked.min_p:
        probabilities = _cut(scaled, asked, top_k, top_p, min_p, behind)
    else:
        probabilities = scaled.softmax(-1)
    cumulative = probabilities.cumsum(-1)
    # A number below 1 times the total stays below the last step of the staircase, so the token that is found always
    # has a probability above 0 where sums are made in order. A device makes them in parallel, and rounding may then
    # raise the staircase at a token of probability 0: that one is not taken.
    total = cumulative[:, -1:]
    threshold = number * total
    if behind:  # an NPU searches on its slow processor, and compares on its fast ones
        found = (cumulative <= threshold).sum(-1, keepdim=True)
    else:
        found = torch.searchsorted(cumulative, threshold, right=True)
    found = found.clamp_(max=logits.shape[1] - 1)
    found = torch.where(probabilities.gather(1, found) > 0, found, likeliest[:, None])
    return torch.where(total.isfinite() & (total > 0), found, NOT_FINITE)[:, 0]


def _cut(scaled: Tensor, asked: SamplingMetadata, top_k: Tensor, top_p: Tensor, min_p: Tensor, behind: bool) -> Tensor:
    """Probabilities [R, vocab], 0 where top_k, top_p or min_p cut, not normalised again. In place on `scaled`."""
    vocab = scaled.shape[1]
    # Every cut is a threshold: equal logits are kept or dropped together, however a sort breaks ties.
    top_p = top_p.clamp(min=torch.finfo(torch.float32).tiny)  # above 0, so that the likeliest token always stays
    order = None
    if asked.top_k > 0 or asked.top_p:
        values, order = _largest(scaled, asked, behind)  # [R, width], falling
        if asked.top_k > 0:
            last = values.gather(1, (top_k - 1).clamp(min=0).to(torch.int64))
            scaled.masked_fill_(scaled < torch.where(top_k > 0, last, -torch.inf), -torch.inf)
    probabilities = scaled.softmax(-1)
    floor = torch.zeros_like(top_p)  # [R, 1]: what is less likely is cut
    if order is not None and asked.top_p:
        falling = probabilities.gather(1, order)
        before = falling.cumsum(-1) - falling  # the mass in front of each; a token stays while that is below top_p
        width = order.shape[1]
        # Read back where that costs nothing: whether the largest were enough. It costs far less than sorting always.
        if asked.top_p_alone and width < vocab and not bool(
            ((before[:, -1:] >= top_p) | (top_p >= 1) | (top_k > 0)).all()
        ):  # fmt: skip
            falling = probabilities.sort(dim=-1, descending=True).values
            before = falling.cumsum(-1) - falling
        smallest = torch.where(before < top_p, falling, torch.inf).amin(-1, keepdim=True)
        floor = torch.where(top_p < 1, smallest, floor)
    if asked.min_p:
        floor = torch.maximum(floor, min_p * probabilities.amax(-1, keepdim=True))
    return probabilities.masked_fill_(probabilities < floor, 0)


def _largest(scaled: Tensor, asked: SamplingMetadata, behind: bool) -> tuple[Tensor, Tensor]:
    """(values, ids) of as many of the largest as the cuts look at, falling: [R, width] each.

    Where top_p stands alone, nobody knows how many that are: all, or at first _PREFIX where the host may look again.
    """
    vocab = scaled.shape[1]
    if asked.top_p_alone and behind:
        values, order = scaled.sort(dim=-1, descending=True)
    else:
        width = min(vocab, max(asked.top_k, _PREFIX if asked.top_p_alone else 1))
        values, order = scaled.topk(width, dim=-1)
    return values, order


def _bits(values: Tensor) -> Tensor:
    """float32 as int32 of the same bits, so that ids and values cross in one copy."""
    return values.contiguous().view(torch.int32)
