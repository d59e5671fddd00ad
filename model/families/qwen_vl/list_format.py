"""Turns one message in list format into pieces: pictures, words, boxes."""

import math
from collections.abc import Mapping, Sequence

from model.families.qwen_vl.chatml import Picture, Piece, Tag, Words
from model.families.qwen_vl.vocabulary import BOX, BOX_END, IMG_END, REF, REF_END

PICTURE_PREFIX = "Picture {n}: "  # one published copy of the tokenizer has no space after the colon

_KINDS = ("image", "text", "box")


def list_pieces(
    items: Sequence[Mapping[str, object]], picture_prefix: str = PICTURE_PREFIX, *, first_picture: int = 0
) -> list[Piece]:
    """One turn as pieces: `[{"image": "a.png"}, {"text": "what?"}]`, as the published tokenizer takes it.

    A box is a *list* of `[x1, y1, x2, y2]` and may have a `ref` beside it. `{n}` in the prefix counts the images of
    this list from 1. Tags typed in a text stay text. Raises ValueError naming the item's index.
    """
    pieces: list[Piece] = []
    n_images = 0
    for index, item in enumerate(items):
        param = f"item {index}"
        kind = _kind(item, param)
        if kind == "image":
            source = _string(item, "image", param)
            if IMG_END in source:
                raise ValueError(f"{param}: 'image' holds {IMG_END}")
            _add_words(pieces, picture_prefix.replace("{n}", str(n_images + 1)))
            pieces.append(Picture(first_picture + n_images))
            _add_words(pieces, "\n")
            n_images += 1
        elif kind == "text":
            _add_words(pieces, _string(item, "text", param))
        else:
            pieces += _box_pieces(item, param)
    return pieces


def _kind(item: object, param: str) -> str:
    if not isinstance(item, Mapping):
        raise ValueError(f"{param}: expected an object with one of 'image', 'text', 'box'")
    kinds = [key for key in _KINDS if key in item]
    if len(kinds) != 1:
        raise ValueError(f"{param}: expected exactly one of 'image', 'text', 'box'; it has {_names(item)}")
    if unknown := [key for key in item if key != kinds[0] and not (key == "ref" and kinds[0] == "box")]:
        raise ValueError(f"{param}: {unknown[0]!r} does not go with {kinds[0]!r}")
    return kinds[0]


def _names(item: Mapping[str, object]) -> str:
    return ", ".join(repr(key) for key in item) or "no key"


def _string(item: Mapping[str, object], key: str, param: str) -> str:
    value = item[key]
    if not isinstance(value, str):
        raise ValueError(f"{param}: {key!r} must be a string")
    return value


def _add_words(pieces: list[Piece], text: str) -> None:
    """Text that touches text is one piece, because tokens form across the seam."""
    if pieces and isinstance(last := pieces[-1], Words):
        pieces[-1] = Words(last.text + text)
    elif text:
        pieces.append(Words(text))


def _box_pieces(item: Mapping[str, object], param: str) -> list[Piece]:
    pieces: list[Piece] = []
    boxes = item["box"]
    if not isinstance(boxes, (list, tuple)) or any(isinstance(box, str) for box in boxes):
        raise ValueError(f"{param}: 'box' must be a list of boxes, [[x1, y1, x2, y2], ...]")
    if boxes and not isinstance(boxes[0], (list, tuple)):
        raise ValueError(f"{param}: 'box' is one flat box; write a list of boxes, [[x1, y1, x2, y2]]")
    if "ref" in item:
        ref = _string(item, "ref", param)
        if REF_END in ref:
            raise ValueError(f"{param}: 'ref' holds {REF_END}")
        pieces += [Tag(REF), *([Words(ref)] if ref else []), Tag(REF_END)]
    for number, box in enumerate(boxes):
        if not isinstance(box, (list, tuple)) or len(box) != 4 or not all(map(_is_number, box)):
            raise ValueError(f"{param}: box {number} must be four numbers, [x1, y1, x2, y2]")
        x1, y1, x2, y2 = (int(value) for value in box)  # towards zero, as the original's %d
        pieces += [Tag(BOX), Words(f"({x1},{y1}),({x2},{y2})"), Tag(BOX_END)]
    return pieces


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
