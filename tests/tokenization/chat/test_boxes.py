"""Regions in an answer: order, edges, tags that are broken."""

import re
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables import each_of
from tokenization.chat.boxes import Box, find_boxes

SIZE = (640, 480)


def box(ref: str | None, *points: tuple[int, int], picture: int = 0) -> Box:
    return Box(ref=ref, kind="box" if len(points) == 2 else "quad", points=points, picture=picture)


def test_a_box_with_its_words() -> None:
    text = "Here: <ref> 击掌 </ref><box>(517,508),(589,611)</box>."
    assert find_boxes(text, [SIZE]) == (box("击掌", (330, 243), (376, 293)),)


def test_pixels_are_truncated_as_in_the_original() -> None:
    (found,) = find_boxes("<box>(290,0),(1000,580)</box>", [(100, 100)])
    assert found.points == ((int(290 / 1000 * 100), 0), (100, 57))  # 0.58 * 100 is 57.99999999999999
    assert found.points[0][0] == 28  # likewise 29 is missed


def test_several_boxes_share_their_words_in_order() -> None:
    text = (
        "<ref>dogs</ref><box>(0,0),(500,500)</box><box>(500,500),(1000,1000)</box> and <box>(1,2),(3,4)</box>"
        "<ref>cat</ref><quad>(0,0),(1000,0),(1000,1000),(0,1000)</quad>"
    )
    assert find_boxes(text, [(1000, 1000)]) == (
        box("dogs", (0, 0), (500, 500)),
        box("dogs", (500, 500), (1000, 1000)),
        box(None, (1, 2), (3, 4)),
        box("cat", (0, 0), (1000, 0), (1000, 1000), (0, 1000)),
    )


def test_words_between_end_the_reference() -> None:
    (found,) = find_boxes("<ref>dog</ref> is at <box>(1,2),(3,4)</box>", [(1000, 1000)])
    assert found.ref is None


@pytest.mark.parametrize("text", ["<ref></ref><box>(1,2),(3,4)</box>", "<ref>  </ref><box>(1,2),(3,4)</box>"])
def test_empty_words_are_none(text: str) -> None:
    assert [found.ref for found in find_boxes(text, [SIZE])] == [None]


def test_corners_of_a_box_are_put_in_order_and_those_of_a_quad_are_not() -> None:
    (found,) = find_boxes("<box>(900,800),(100,200)</box>", [(1000, 1000)])
    assert found.points == ((100, 200), (900, 800))
    (found,) = find_boxes("<quad>(5,5),(1,5),(1,1),(5,1)</quad>", [(1000, 1000)])
    assert found.points == ((5, 5), (1, 5), (1, 1), (5, 1))
    assert found.bounds == (1, 1, 5, 5)


def test_what_lies_outside_is_moved_to_the_edge() -> None:
    text = f"<box>(-50,1001),(999999999999999999,{'9' * 18})</box>"
    assert find_boxes(text, [SIZE]) == (box(None, (0, 480), (640, 480)),)


def test_the_picture_is_the_latest() -> None:
    text = "<box>(0,0),(1000,1000)</box>"
    sizes = [(10, 20), (30, 40)]
    assert find_boxes(text, sizes) == (box(None, (0, 0), (30, 40), picture=1),)
    assert find_boxes(text, []) == ()


@each_of(
    "text",
    [
        "", "plain", "<box>", "</box>", "<box></box>", "<box>(1,2)</box>", "<box>(1,2),(3,4)", "(1,2),(3,4)</box>",
        "<box>(1,2),(3)</box>", "<box>(1,2),(3,4),(5,6)</box>", "<box>(a,b),(c,d)</box>", "<box>(1.5,2),(3,4)</box>",
        "<box>(1,2),(3,4)</quad>", "<quad>(1,2),(3,4)</quad>", "<box>1,2,3,4</box>", "<BOX>(1,2),(3,4)</BOX>",
        "<box>(\u0661,2),(3,4)</box>", "<ref>dog</ref>", "<ref>dog<box>", f"<box>({'9' * 19},2),(3,4)</box>",
        f"<box>(1,2),(3,{'9' * 100_000})</box>",
    ],
)  # fmt: skip
def test_what_is_not_complete_is_no_region(text: str) -> None:
    assert find_boxes(text, [SIZE]) == ()


@each_of(
    ("text", "refs"),
    [
        ("<ref><ref>dog</ref><box>(1,2),(3,4)</box>", ["dog"]),
        ("<ref>a<box>(1,2),(3,4)</box></ref><box>(1,2),(3,4)</box>", [None, None]),
        ("<box><box>(1,2),(3,4)</box></box>", [None]),
        ("<ref>a</ref><box>(1,2)</box><box>(1,2),(3,4)</box>", [None]),
        ("<ref>a</ref><box>(1,2),(3,4)</box><box>(1,2", ["a"]),
        ("<ref>a < b\nand c</ref><box> ( 1, 2 ) , ( 3,4 ) </box>", ["a < b\nand c"]),
    ],
)
def test_nested_and_unclosed_tags(text: str, refs: list[str | None]) -> None:
    assert [found.ref for found in find_boxes(text, [SIZE])] == refs


TOKENS = [
    "<ref>",
    "</ref>",
    "<box>",
    "</box>",
    "<quad>",
    "</quad>",
    "(1,2)",
    "(999,1000)",
    ",",
    "(",
    "7",
    "-",
    " ",
    "犬",
]


@settings(max_examples=50)
@given(
    st.lists(st.sampled_from(TOKENS) | st.text(max_size=3), max_size=40).map("".join),
    st.tuples(st.integers(1, 5000), st.integers(1, 5000)),
)
def test_any_answer_gives_boxes_inside_the_picture(text: str, size: tuple[int, int]) -> None:
    for found in find_boxes(text, [size]):
        x1, y1, x2, y2 = found.bounds
        assert 0 <= x1 <= x2 <= size[0]
        assert 0 <= y1 <= y2 <= size[1]
        assert len(found.points) == (2 if found.kind == "box" else 4)
        assert found.ref is None or f"{found.ref}" in text


COORDINATE = st.integers(0, 1000)


@given(st.lists(st.tuples(COORDINATE, COORDINATE, COORDINATE, COORDINATE), max_size=8), st.sampled_from(["dog", None]))
def test_every_well_formed_box_is_found(values: list[tuple[int, int, int, int]], ref: str | None) -> None:
    text = (f"<ref>{ref}</ref>" if ref else "") + "".join(f"<box>({a},{b}),({c},{d})</box>" for a, b, c, d in values)
    found = find_boxes(text, [(1000, 1000)])
    assert [one.ref for one in found] == [ref] * len(values)
    for one, (x1, y1, x2, y2) in zip(found, values, strict=True):
        near: Any = (min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2))
        assert all(0 <= want - got <= 1 for want, got in zip(near, one.bounds, strict=True))


@each_of(
    "text",
    [
        "<ref>" * 100_000, "<ref>a</ref>" * 100_000, "<ref>" + "a" * 1_000_000, "<box>" * 100_000,
        "<box>" + " " * 1_000_000, "<box>(" + " " * 1_000_000 + "1", "<box>(1,2),(3,4)" * 50_000,
        "<ref>a</ref><box>(1,2),(3,4)</box>" * 20_000, "<" * 1_000_000, "<ref>" + "<box>(1,2),(3,4)</box>" * 50_000,
    ],
)  # fmt: skip
def test_long_answers_take_linear_time(text: str) -> None:
    whole = re.findall(r"<box>\(1,2\),\(3,4\)</box>", text)
    begun = time.process_time()
    assert len(find_boxes(text, [SIZE])) == len(whole)
    assert time.process_time() - begun < 10  # a tenth of a second or four; a square of this length takes minutes
