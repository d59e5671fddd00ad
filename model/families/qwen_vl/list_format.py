"""The list in which Qwen-VL takes one turn: pictures, words, boxes. Knows no history and no pixels."""

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence

from model.families.qwen_vl.chatml import Picture, Piece, Tag, Words
from model.families.qwen_vl.vocabulary import BOX, BOX_END, IMG, IMG_END, QUAD, QUAD_END, REF, REF_END

PICTURE_PREFIX = "Picture {n}: "  # one published copy of the tokenizer has no space after the colon

_KINDS = ("image", "text", "box")
_OPENING = re.compile(f"{IMG}|{REF}|{BOX}|{QUAD}")
_ENDS = {IMG: IMG_END, REF: REF_END, BOX: BOX_END, QUAD: QUAD_END}


def from_list_format(items: Sequence[Mapping[str, object]], picture_prefix: str = PICTURE_PREFIX) -> str:
    """One turn as the original writes it: `[{"image": "a.png"}, {"text": "what?"}]` -> a string with tags.

    An item is an image (a path or URL), a text, or a box, which is a *list* of `[x1, y1, x2, y2]` and may have a `ref`
    beside it. `{n}` in the prefix counts the images of this list from 1. Raises ValueError naming the item's index.
    """
    pieces, sources = _read(items, picture_prefix, first_picture=0)
    return "".join(_written(piece, sources) for piece in pieces)


def list_pieces(
    items: Sequence[Mapping[str, object]], picture_prefix: str = PICTURE_PREFIX, *, first_picture: int = 0
) -> list[Piece]:
    """The same turn as pieces: tags typed in a text stay text, and images become Picture(first_picture), and so on.

    Raises ValueError naming the item's index.
    """
    return _read(items, picture_prefix, first_picture)[0]


def to_list_format(text: str) -> list[dict[str, str]]:
    """A string with tags -> a list of image, ref, box, quad and text items in its order, each a string, NFC.

    Every `<img>`, `<ref>`, `<box>`, `<quad>` runs to its own next end tag; raises ValueError where there is none.
    """
    text = unicodedata.normalize("NFC", text)
    items: list[dict[str, str]] = []
    at = 0
    while opening := _OPENING.search(text, at):
        if opening.start() > at:
            items.append({"text": text[at : opening.start()]})
        tag = opening.group()
        end = text.find(_ENDS[tag], opening.end())
        if end < 0:
            raise ValueError(f"{tag} at character {opening.start()} has no {_ENDS[tag]}")
        items.append({"image" if tag == IMG else tag[1:-1]: text[opening.end() : end]})
        at = end + len(_ENDS[tag])
    if at < len(text):
        items.append({"text": text[at:]})
    return items


def _read(
    items: Sequence[Mapping[str, object]], picture_prefix: str, first_picture: int
) -> tuple[list[Piece], list[str]]:
    pieces: list[Piece] = []
    sources: list[str] = []
    for index, item in enumerate(items):
        param = f"item {index}"
        kind = _kind(item, param)
        if kind == "image":
            source = _string(item, "image", param)
            if IMG_END in source:
                raise ValueError(f"{param}: 'image' holds {IMG_END}")
            _add_words(pieces, picture_prefix.replace("{n}", str(len(sources) + 1)))
            pieces.append(Picture(first_picture + len(sources)))
            _add_words(pieces, "\n")
            sources.append(source)
        elif kind == "text":
            _add_words(pieces, _string(item, "text", param))
        else:
            pieces += _box_pieces(item, param)
    return pieces, sources


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


def _written(piece: Piece, sources: Sequence[str]) -> str:
    if isinstance(piece, Picture):
        return f"{IMG}{sources[piece.index]}{IMG_END}"
    return piece.name if isinstance(piece, Tag) else piece.text
