"""Placeholders: a template writes one for each medium, which becomes as many as the medium has tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Kind, Media
from tokenization.chat.template_variables import refuse_special
from tokenization.messages import Prepared
from tokenization.text.bpe import BPETokenizer
from tokenization.text.template import ChatTemplate
from tokenization.text.tokenizer import Tokenizer

Spans = tuple[tuple[int, int], ...]  # (start, length) runs of placeholders


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    input_ids: np.ndarray  # int64 [n]; every placeholder holds its ordinary placeholder id
    spans: tuple[Spans, ...]  # of each measure, in order


def render_prompt(
    chat: Chat, template: ChatTemplate, tokenizer: BPETokenizer, placeholders: Mapping[Kind, int], *, opens: bool = True
) -> list[int]:
    """Ids with one placeholder for each medium, by the chat template. Raises ChatError where it has others.

    opens: the prompt begins with what the vocabulary puts in front of every text.
    """
    if chat.template_kwargs:
        refuse_special(chat.template_kwargs, tokenizer.special)
    ids = tokenizer.encode_pieces(template.render(chat))
    if opens and tuple(ids[: len(tokenizer.opening)]) != tokenizer.opening:  # some templates write it themselves
        ids[:0] = tokenizer.opening
    written = kinds_of(ids, placeholders)
    given = [medium.kind for medium in chat.media]
    if len(written) != len(given):
        elsewhere = [
            part for turn in chat.turns if turn.role != "user" for part in turn.parts if isinstance(part, Media)
        ]
        raise ChatError(
            f"the model's chat template has places for {len(written)} of the chat's {len(given)} media items",
            elsewhere[0].param if elsewhere else None,
        )
    if written != given:
        raise ChatError("the model's chat template has its places for the kinds of media in another order")
    return ids


def kinds_of(ids: Iterable[int], placeholders: Mapping[Kind, int]) -> list[Kind]:
    """The kind of each placeholder among `ids`, in order."""
    kinds = dict(zip(placeholders.values(), placeholders, strict=True))
    return [kinds[token_id] for token_id in ids if token_id in kinds]


def expand_placeholders(ids: Sequence[int], placeholders: Mapping[Kind, int], counts: Sequence[int]) -> Layout:
    """One placeholder for each medium -> a run of as many as `counts` says."""
    short = np.asarray(ids, np.int64)
    places = np.flatnonzero(np.isin(short, list(placeholders.values())))
    runs = np.array(counts, np.int64)
    repeats = np.ones(len(short), np.int64)
    repeats[places] = runs
    starts = places + np.cumsum(runs) - runs - np.arange(len(runs))
    spans = tuple(((int(start), int(run)),) for start, run in zip(starts, runs, strict=True))
    return Layout(input_ids=np.repeat(short, repeats), spans=spans)


def expand_rows(ids: Sequence[int], placeholder: int, pictures: Sequence[np.ndarray]) -> Layout:
    """One placeholder for each picture -> rows of them, each with an id of the model's own; its spans are its rows.

    pictures: int64 [rows, columns + 1], whose last column holds these ids.
    """
    short = np.asarray(ids, np.int64)
    parts, spans, start, behind = [], [], 0, 0  # ids of the prompt, and of the expanded one, so far
    for place, block in zip(np.flatnonzero(short == placeholder).tolist(), pictures, strict=True):
        parts += [short[start:place], block.reshape(-1)]
        rows, width = block.shape
        first = behind + place - start
        spans.append(tuple((first + row * width, width - 1) for row in range(rows)))
        start, behind = place + 1, first + block.size
    return Layout(input_ids=np.concatenate([*parts, short[start:]]), spans=tuple(spans))


def take_text(found: list[int], tokenizer: Tokenizer) -> str:
    """Take the ordinary text off the end of `found`: merges cross from it into a text that comes behind it."""
    first = len(found)
    while first and not tokenizer.is_special(found[first - 1]):
        first -= 1
    text = b"".join(map(tokenizer.token_bytes, found[first:])).decode()
    del found[first:]
    return text


def plain_positions(n: int) -> tuple[np.ndarray, int]:
    """int32 [3, n], each index three times, and the delta 0: for prompts where media count on as text does."""
    return np.broadcast_to(np.arange(n, dtype=np.int32), (3, n)).copy(), 0


def text_only(request_id: str, ids: Sequence[int], seconds: dict[str, dict[str, float]] | None = None) -> Prepared:
    """A prompt without media from its ids. Every family counts text on all axes alike, so it needs no processor."""
    positions, delta = plain_positions(len(ids))
    return Prepared(
        request_id=request_id, input_ids=np.asarray(ids, np.int64), media=(), positions=positions,
        position_delta=delta, seconds=seconds or {},
    )  # fmt: skip
