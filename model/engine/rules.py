"""Changes logits before a token is drawn: bias, penalties, forbidden and allowed ids.

Order and rules are those of transformers' logits processors; OpenAI's penalties follow the repetition penalty.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from model.engine.history import History
from model.engine.messages import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    sampling: SamplingParams
    position: int  # index that the drawn token gets in its sequence
    history: History | None = None  # None: nothing that looks back is asked for


def apply_rules(logits: Tensor, rows: Sequence[Row], banned: Tensor | None = None) -> None:
    """Change float32 logits [S, vocab] in place; the ids in `banned`, int64 [b], are forbidden in every row."""
    flat = logits.view(-1)
    vocab = logits.shape[1]
    _add_bias(flat, vocab, rows)
    _penalise(flat, vocab, rows)
    _forbid(logits, rows)
    if banned is not None and len(banned):
        logits.index_fill_(1, banned, -torch.inf)


def exhausted(row: Row, banned: Collection[int]) -> bool:
    """Whether the client's own rules leave no id of `allowed_token_ids` to this row, so that nothing can be drawn."""
    allowed = row.sampling.allowed_token_ids
    return bool(allowed) and set(allowed) <= {*banned, *_forbidden(row)}


def _forbid(logits: Tensor, rows: Sequence[Row]) -> None:
    flat, vocab = logits.view(-1), logits.shape[1]
    places: list[int] = []
    for i, row in enumerate(rows):
        history = row.history
        if history is None:
            continue
        if history.bad_words is not None or history.generated < row.sampling.min_tokens:
            places += [token + i * vocab for token in _forbidden(row) if token < vocab]
        if history.allowed is not None:  # a row by itself: few ask, and gathering what is kept costs far more
            logits[i].masked_fill_(_to(history.outside(vocab), flat), -torch.inf)
    if places:
        flat.index_fill_(0, _to(np.array(places, np.int64), flat), -torch.inf)


def _forbidden(row: Row) -> list[int]:
    """Ids that the answer must not go on with: its ends before min_tokens, and the last id of a bad word."""
    history = row.history
    if history is None:
        return []
    early = row.sampling.stop_token_ids if history.generated < row.sampling.min_tokens else ()
    return [*early, *(history.bad_words.forbidden if history.bad_words is not None else ())]


def _add_bias(flat: Tensor, vocab: int, rows: Sequence[Row]) -> None:
    places, values = [], []
    for i, row in enumerate(rows):
        history = row.history
        if history is not None and history.bias_ids is not None and history.bias is not None:
            places.append(history.bias_ids + i * vocab)
            values.append(history.bias)
    if places:
        flat.index_add_(0, _to(np.concatenate(places), flat), _to(np.concatenate(values), flat))


def _penalise(flat: Tensor, vocab: int, rows: Sequence[Row]) -> None:
    places, numbers = [], []
    for i, row in enumerate(rows):
        counts = row.history.counts if row.history is not None else None
        if counts is None:
            continue
        sampling, times = row.sampling, counts.counts
        off = sampling.frequency_penalty * times + sampling.presence_penalty * (times > 0)
        places.append(counts.ids + i * vocab)
        numbers.append(np.stack([np.full(len(times), sampling.repetition_penalty), off]).astype(np.float32))
    if not places:
        return
    where = _to(np.concatenate(places), flat)
    factor, less = _to(np.concatenate(numbers, axis=1), flat).unbind(0)  # float32 [k] each
    found = flat.index_select(0, where)
    found = torch.where(found < 0, found * factor, found / factor) - less
    flat.index_copy_(0, where, found)


def _to(array: np.ndarray, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like.device)
