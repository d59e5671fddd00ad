"""Boxes in an answer (`<ref>`, `<box>`, `<quad>`) become pixels; models write 0 to 1000 along each side."""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

_POINT = r"\s*\(\s*-?[0-9]{1,18}\s*,\s*-?[0-9]{1,18}\s*\)\s*"
_REGION = f"<box>{_POINT},{_POINT}</box>|<quad>{_POINT},{_POINT},{_POINT},{_POINT}</quad>"
_NAME = "(?:(?!</?(?:ref|box|quad)>).)*"
_POINTED = re.compile(f"(?:<ref>(?P<ref>{_NAME})</ref>)?(?P<regions>(?:{_REGION})+)", re.DOTALL)
_ONE = re.compile(_REGION)
_NUMBER = re.compile("-?[0-9]+")

FULL = 1000  # the coordinate of the far edge
TAGS = ("<ref>", "</ref>", "<box>", "</box>")


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """One region of one picture; `points` are (x, y) in pixels, 0..width and 0..height: x = width is the right edge.

    A box has its upper left and its lower right corner, a quad its four corners as they were written.
    """

    ref: str | None  # the words before it, None where there are none; several boxes may share one
    kind: Literal["box", "quad"]
    points: tuple[tuple[int, int], ...]
    picture: int  # index among the pictures of the conversation

    @property
    def bounds(self) -> tuple[int, int, int, int]:
        """(x1, y1, x2, y2) of the upright rectangle around it, x1 <= x2 and y1 <= y2."""
        xs, ys = zip(*self.points, strict=True)
        return min(xs), min(ys), max(xs), max(ys)


def written(boxes: Sequence[tuple[int, int, int, int]], ref: str | None) -> str:
    """Boxes (x1, y1, x2, y2), 0 to 1000, as a model writes and reads them, with the words for what is inside."""
    named = "" if ref is None else f"<ref>{ref}</ref>"
    return named + "".join(f"<box>({x1},{y1}),({x2},{y2})</box>" for x1, y1, x2, y2 in boxes)


def find_boxes(text: str, sizes: Sequence[tuple[int, int]]) -> tuple[Box, ...]:
    """The regions in an answer, in order, as pixels of the last picture.

    `sizes` are (width, height) in pixels; without pictures there are no boxes. Pixels are `int(x / 1000 * width)`,
    moved inside; a box's corners are put in order. A `<ref>` names all regions directly after it. What is not complete
    (an unclosed or empty tag, more than 18 digits) stays in the text.
    """
    if not sizes:
        return ()
    boxes: list[Box] = []
    for pointed in _POINTED.finditer(text):
        ref = (pointed["ref"] or "").strip() or None
        for region in _ONE.findall(pointed["regions"]):
            boxes.append(_box(region, ref, sizes[-1], len(sizes) - 1))
    return tuple(boxes)


def _box(region: str, ref: str | None, size: tuple[int, int], picture: int) -> Box:
    numbers = [int(number) for number in _NUMBER.findall(region)]
    xs = [_pixel(x, size[0]) for x in numbers[::2]]
    ys = [_pixel(y, size[1]) for y in numbers[1::2]]
    if region.startswith("<quad>"):
        return Box(ref=ref, kind="quad", points=tuple(zip(xs, ys, strict=True)), picture=picture)
    return Box(ref=ref, kind="box", points=((min(xs), min(ys)), (max(xs), max(ys))), picture=picture)


def _pixel(value: int, length: int) -> int:
    return min(max(int(value / FULL * length), 0), length)
