"""Turns one message in list format into pieces: pictures, words, boxes."""

from collections.abc import Sequence

from model.families.qwen_vl.chatml import Piece, Tag, TaggedPicture, Words
from model.families.qwen_vl.vocabulary import BOX, BOX_END, REF, REF_END
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Boxes, Media, Text

PICTURE_PREFIX = "Picture {n}: "  # one published copy of the tokenizer has no space after the colon


def list_pieces(parts: Sequence[Text | Media | Boxes], picture_prefix: str = PICTURE_PREFIX) -> list[Piece]:
    """One turn as the published tokenizer writes it; `{n}` in the prefix counts the pictures of the turn from 1.

    Tags typed in a text stay text. Raises ChatError for a `ref` that holds its own end.
    """
    pieces: list[Piece] = []
    n_pictures = 0
    for index, part in enumerate(parts):
        if isinstance(part, Media):
            n_pictures += 1
            _add_words(pieces, picture_prefix.replace("{n}", str(n_pictures)))
            pieces.append(TaggedPicture())
            _add_words(pieces, "\n")
        elif isinstance(part, Text):
            _add_words(pieces, part.text)
        else:
            if part.ref is not None and REF_END in part.ref:
                raise ChatError(f"item {index}: 'ref' holds {REF_END}")
            pieces += _box_pieces(part)
    return pieces


def _add_words(pieces: list[Piece], text: str) -> None:
    """Text that touches text is one piece, because tokens form across the seam."""
    if pieces and isinstance(last := pieces[-1], Words):
        pieces[-1] = Words(last.text + text)
    elif text:
        pieces.append(Words(text))


def _box_pieces(part: Boxes) -> list[Piece]:
    pieces: list[Piece] = []
    if part.ref is not None:
        pieces += [Tag(REF), *([Words(part.ref)] if part.ref else []), Tag(REF_END)]
    for x1, y1, x2, y2 in part.boxes:
        pieces += [Tag(BOX), Words(f"({x1},{y1}),({x2},{y2})"), Tag(BOX_END)]
    return pieces
