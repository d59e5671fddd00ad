"""A request as it comes: checked, and the two words of each medium taken out of its ids."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from model.engine.block_keys import chain_root
from model.engine.messages import Generate
from model.engine.plan import RequestError
from model.engine.sequence import EncoderInput, ItemKey, SegmentRef, Sequence
from model.net.multimodal import Encoder
from shm import WordError, decode_shape_from_int64, decode_shm_name_from_int64
from tokenization.messages import MediaItem

NUMPY: Mapping[torch.dtype, str] = {torch.uint8: "uint8", torch.float32: "float32"}  # what lies in segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    vocab_size: int
    media_width: int  # elements of what an encoder gives for one token
    itemsize: int  # bytes of one of them
    max_model_len: int
    placeholder_ids: Mapping[str, int]  # by kind; this model takes no other kinds
    encoders: Mapping[str, Encoder]  # by kind
    variant: Callable[[int], int]  # tokens of a prompt -> which of the ways it is turned in


def checked_sequence(generate: Generate, bounds: Bounds) -> Sequence:
    """Check a request; restore the placeholders that its words stand for, in a copy. Raises RequestError.

    So no later code sees a negative id.
    """
    prepared = generate.prepared
    n = len(prepared.input_ids)
    if prepared.input_ids.ndim != 1 or prepared.positions.shape != (3, n):
        raise RequestError(f"{n} ids came with positions of shape {prepared.positions.shape}")
    if not 1 <= n < bounds.max_model_len:
        raise RequestError(f"the prompt has {n} tokens, this engine takes 1 to {bounds.max_model_len - 1}")
    if generate.sampling.max_tokens < 1:
        raise RequestError("max_tokens is below 1")
    if generate.sampling.n < 1:
        raise RequestError("n is below 1")
    if not all(0 <= token < bounds.vocab_size for token, _ in generate.sampling.logit_bias):
        raise RequestError(f"logit_bias holds ids outside [0, {bounds.vocab_size})")
    limit = min(n + generate.sampling.max_tokens, bounds.max_model_len)
    ids = np.empty(limit, np.int64)
    ids[:n] = prepared.input_ids
    taken = np.zeros(n, bool)
    media = tuple(
        _take((generate.request_id, i), item, ids[:n], taken, bounds) for i, item in enumerate(prepared.media)
    )
    if ids[:n].min() < 0 or ids[:n].max() >= bounds.vocab_size:
        raise RequestError(f"the prompt holds ids outside [0, {bounds.vocab_size})")
    return Sequence(
        request_id=generate.request_id, ids=ids, n_prompt=n, limit=limit, n_tokens=n,
        positions=prepared.positions.astype(np.int64), position_delta=prepared.position_delta, media=media,
        sampling=generate.sampling, scores_prompt=generate.scores_prompt, client=generate.client,
        root=chain_root(generate.salt, bounds.variant(n)),
    )  # fmt: skip


def _take(key: ItemKey, item: MediaItem, ids: np.ndarray, taken: np.ndarray, bounds: Bounds) -> EncoderInput:
    """One medium: its words decoded, its placeholders restored in `ids`, its places noted in `taken`.

    One with a key and no words comes for embeddings that are here.
    """
    where = f"media item {key[1]}"
    placeholder = bounds.placeholder_ids.get(item.kind)
    if placeholder is None:
        raise RequestError(f"{where}: this model takes no {item.kind}")
    for start, length in item.spans:
        if not (0 <= start and 1 <= length and start + length <= len(ids)):
            raise RequestError(f"{where}: the span ({start}, {length}) does not lie inside {len(ids)} ids")
    places = np.concatenate([np.arange(start, start + length) for start, length in item.spans] or [np.empty(0, int)])
    if len(places) < 2:
        raise RequestError(f"{where}: two words need two placeholders, it has {len(places)}")
    if len(np.unique(places)) < len(places) or taken[places].any():
        raise RequestError(f"{where}: its spans overlap with each other or with another item's")
    taken[places] = True
    segment = None
    if not (item.key and ids[places[0]] == placeholder):
        segment = _segment(where, item, ids[places[:2]], bounds)
        ids[places[:2]] = placeholder
    if (ids[places] != placeholder).any():
        raise RequestError(f"{where}: its spans hold other ids than its placeholder")
    return EncoderInput(
        key=key, kind=item.kind, grid=item.grid, spans=item.spans, segment=segment,
        nbytes=len(places) * bounds.media_width * bounds.itemsize, content=item.key,
    )  # fmt: skip


def _segment(where: str, item: MediaItem, words: np.ndarray, bounds: Bounds) -> SegmentRef:
    """What the two words of an item lead to. Raises RequestError."""
    try:
        name = decode_shm_name_from_int64(int(words[0]))
        shape = decode_shape_from_int64(int(words[1]))
    except WordError as error:
        raise RequestError(f"{where}: {error}", "media_unavailable") from None
    encoder = bounds.encoders[item.kind]
    expected = encoder.input_shape(item.grid)
    if shape != expected:
        raise RequestError(f"{where}: an array of shape {shape} came for the grid {item.grid}, which needs {expected}")
    return SegmentRef(name=name, shape=shape, dtype=NUMPY[encoder.dtype])
