"""How a conversation reads to Qwen-VL: pieces in ChatML, history cut to a window.

Pieces, not one string: a tag that a client types stays text, except a grounding tag in an earlier answer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from model.families.qwen_vl.vocabulary import (
    END_OF_TEXT,
    GROUNDING_TAGS,
    IM_END,
    IM_START,
    IMG,
    IMG_END,
    IMG_PAD,
    QwenVLTokenizer,
)
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Text, Turn
from tokenization.chat.system_messages import joined_at_the_head, later_as_users

DEFAULT_SYSTEM = "You are a helpful assistant."
MAX_WINDOW_SIZE = 6144  # tokens; a checkpoint's generation_config.json may say otherwise
PICTURE_TOKENS = 256  # ids between <img> and </img>
STOPS = (IM_END, IM_START, END_OF_TEXT)
_GROUNDING = re.compile(f"({'|'.join(map(re.escape, GROUNDING_TAGS))})")


@dataclass(frozen=True, slots=True)
class Tag:
    name: str


@dataclass(frozen=True, slots=True)
class Words:
    """Ordinary text, encoded by itself: no token spans two pieces."""

    text: str


@dataclass(frozen=True, slots=True)
class TaggedPicture:
    """One picture's placeholders, between both its tags."""


Round = tuple[Turn, Turn | None]
Piece = Tag | Words | TaggedPicture


def make_context(
    query: Sequence[Piece],
    history: Sequence[tuple[Sequence[Piece], Sequence[Piece] | None]],
    tokenizer: QwenVLTokenizer,
    *,
    system: str = DEFAULT_SYSTEM,
    max_window_size: int = MAX_WINDOW_SIZE,
    opens: bool = True,
) -> list[Piece]:
    """System, the history that fits, the query, the opening of the answer if `opens`.

    history: (user, assistant), oldest first.
    """
    n = n_kept(history, tokenizer, system=system, max_window_size=max_window_size)
    head = [*_turn("system", [Words(system)])]
    turns = [piece for user, assistant in history[len(history) - n :] for piece in _exchange(user, assistant)]
    opening: list[Piece] = [Words("\n"), Tag(IM_START), Words("assistant"), Words("\n")]
    return [*head, *turns, Words("\n"), *_turn("user", query), *(opening if opens else [])]


def n_kept(
    history: Sequence[tuple[Sequence[Piece], Sequence[Piece] | None]],
    tokenizer: QwenVLTokenizer,
    *,
    system: str = DEFAULT_SYSTEM,
    max_window_size: int = MAX_WINDOW_SIZE,
) -> int:
    """How many of the newest turns, with system and all tokens of pictures, are below `max_window_size` tokens."""
    size = count(_turn("system", [Words(system)]), tokenizer)
    for n, (user, assistant) in enumerate(reversed(history)):  # the query is not counted: the original's rule
        size += count(_exchange(user, assistant), tokenizer)
        if size >= max_window_size:
            return n
    return len(history)


def _exchange(user: Sequence[Piece], assistant: Sequence[Piece] | None) -> list[Piece]:
    answer = [] if assistant is None else _turn("assistant", assistant)
    return [Words("\n"), *_turn("user", user), Words("\n"), *answer]


def _turn(role: str, content: Sequence[Piece]) -> list[Piece]:
    return [Tag(IM_START), Words(role), Words("\n"), *content, Tag(IM_END)]


def encode_pieces(
    pieces: Sequence[Piece], tokenizer: QwenVLTokenizer, *, placeholders: int = PICTURE_TOKENS
) -> list[int]:
    """A picture becomes `<img>`, `placeholders` times `<imgpad>`, `</img>`. Raises ChatError as the tokenizer does."""
    special = tokenizer.special
    picture = [special[IMG], *[special[IMG_PAD]] * placeholders, special[IMG_END]]
    ids: list[int] = []
    for piece in pieces:
        if isinstance(piece, Words):
            ids += tokenizer.encode(piece.text)
        elif isinstance(piece, Tag):
            ids.append(special[piece.name])
        else:
            ids += picture
    return ids


def count(pieces: Sequence[Piece], tokenizer: QwenVLTokenizer) -> int:
    return len(encode_pieces(pieces, tokenizer))


def answer_pieces(text: str) -> list[Piece]:
    """An earlier answer as it goes back into the prompt: its `<ref>`, `<box>` and `<quad>` are tags again."""
    # These six lead to no memory and end no turn: a client who writes an answer itself gains nothing by them.
    parts = _GROUNDING.split(text)  # odd ones are the tags
    return [Tag(part) if i % 2 else Words(part) for i, part in enumerate(parts) if part]


def stop_ids(tokenizer: QwenVLTokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.special[name] for name in STOPS)


def rounds_of(chat: Chat) -> tuple[Turn | None, list[Round]]:
    """The system turn, if any, and every exchange; the last has an answer only where that is to be continued.

    The published code takes one system text: several are one, and a later one is a user's. Raises ChatError for another
    order.
    """
    turns = later_as_users(joined_at_the_head(chat.turns))
    system = turns[0] if turns and turns[0].role == "system" else None
    found: list[Round] = []
    for turn in turns[system is not None :]:
        if turn.role == "user":
            found.append((turn, None))
        elif found and found[-1][1] is None:
            found[-1] = (found[-1][0], turn)
        else:
            raise ChatError("this model takes an assistant's message only behind a user's")
    if not found or (found[-1][1] is not None and not chat.continue_final_message):
        raise ChatError("the last message must be a user's")
    return system, found


def text_of(turn: Turn) -> str:
    return "".join(part.text for part in turn.parts if isinstance(part, Text))
