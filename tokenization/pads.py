"""Pads: the template writes one for each medium, and it becomes a run of as many as the medium has tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Kind
from tokenization.chat.rendering import refuse_special
from tokenization.processor import Layout, Measure
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate


def render_pads(chat: Chat, template: ChatTemplate, tokenizer: BPETokenizer, pads: Mapping[Kind, int]) -> list[int]:
    """Ids with one pad for each medium, by the chat template. Raises ChatError where its pads are not the chat's."""
    refuse_special(chat.template_kwargs, tokenizer.special)
    ids = tokenizer.encode_pieces(template.render(chat))
    kinds = {token_id: kind for kind, token_id in pads.items()}
    written = [kinds[token_id] for token_id in ids if token_id in kinds]
    given = [medium.kind for medium in chat.media]
    if len(written) != len(given):
        raise ChatError(
            f"the model's chat template has places for {len(written)} of the chat's {len(given)} media items"
        )
    if written != given:
        raise ChatError("the model's chat template has its places for the kinds of media in another order")
    return ids


def expand_pads(ids: Sequence[int], pads: Mapping[Kind, int], measures: Sequence[Measure]) -> Layout:
    short = np.asarray(ids, np.int64)
    places = np.flatnonzero(np.isin(short, list(pads.values())))
    runs = np.array([measure.n_pads for measure in measures], np.int64)
    repeats = np.ones(len(short), np.int64)
    repeats[places] = runs
    starts = places + np.cumsum(runs) - runs - np.arange(len(runs))
    spans = tuple(((int(start), int(run)),) for start, run in zip(starts, runs, strict=True))
    return Layout(input_ids=np.repeat(short, repeats), spans=spans)


def plain_positions(n: int) -> tuple[np.ndarray, int]:
    """int32 [3, n], each index three times, and the delta 0: for prompts where media count on as text does."""
    return np.broadcast_to(np.arange(n, dtype=np.int32), (3, n)).copy(), 0
