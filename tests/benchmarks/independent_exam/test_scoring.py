"""What is right and what is wrong, by answers written out by hand; and intervals against published ones."""

from typing import Any

import pytest

from benchmarks.independent_exam.scoring import (
    Called,
    Digits,
    Names,
    Number,
    Object,
    Pointed,
    Rule,
    Says,
    overlap,
    wilson,
)
from tests.tables import each_of

pytestmark = pytest.mark.slow

RED_CIRCLE = Names(must={"shape": "circle", "colour": "red"})
RED = Names(must={"colour": "red"}, may={"shape": "circle"})
NO = Names(must={"yes or no": "no"})
CALL = Called(name="count_shapes", arguments={"shape": "star"})


def said(text: str) -> dict[str, Any]:
    return {"text": text, "boxes": []}


def calling(*calls: tuple[str, str], text: str = "") -> dict[str, Any]:
    return {"text": text, "tool_calls": [{"function": {"name": name, "arguments": given}} for name, given in calls]}


@each_of(
    ("rule", "text", "right"),
    [
        (RED_CIRCLE, "red circle", True),
        (RED_CIRCLE, "It is a red Circle.", True),
        (RED_CIRCLE, "红色圆形", True),
        (RED_CIRCLE, "a circle", False),
        (RED_CIRCLE, "blue circle", False),
        (RED_CIRCLE, "a red circle and a blue square", False),
        (RED_CIRCLE, "红色圆环", False),
        (RED, "red", True),
        (RED, "The circle is red.", True),
        (RED, "The square is red.", False),
        (RED, "coloured", False),
        (Names(must={"shape": "ring"}), "圆环", True),
        (Names(must={"place": "first"}), "the first", True),
        (Names(must={"place": "first"}), "the first or the second", False),
        (Names(must={"way": "up"}), "upwards", True),
        (Names(must={"glide": "fall"}), "It is falling.", True),
        (Names(must={"pitch": "high"}), "low", False),
        (NO, "No, it is not.", True),
        (NO, "no", True),
        (NO, "yes", False),
        (NO, "I do not know.", False),
        (NO, "我不知道", False),
        (NO, "不是", True),
        (Number(n=3), "There are three circles.", True),
        (Number(n=3), "3", True),
        (Number(n=3), "三个三角形", True),
        (Number(n=3), "三角形", False),
        (Number(n=3), "13", False),
        (Number(n=3), "3 of 4", False),
        (Number(n=2), "两个", True),
        (Number(n=0), "There are no circles.", True),
        (Number(n=0), "none", True),
        (Number(n=0), "I do not know.", False),
        (Digits(digits="47"), "The number is 47.", True),
        (Digits(digits="47"), "4 7", False),
        (Digits(digits="7"), "07", False),
        (Object(shape="star", colour="red"), '{"shape": "star", "colour": "red"}', True),
        (Object(shape="star", colour="red"), ' {"color": "Red", "shape": "star", "size": 3}\n', True),
        (Object(shape="star", colour="red"), '{"shape": "star"}', False),
        (Object(shape="star", colour="red"), '{"shape": "red star", "colour": "red"}', False),
        (Object(shape="star", colour="red"), '```json\n{"shape": "star", "colour": "red"}\n```', False),
        (Object(shape="star", colour="red"), "[1]", False),
        (Object(shape="star", colour="red"), "red star", False),
        (Says(pattern=r"\bhello\b"), "Hello! What may I look at?", True),
        (Says(pattern=r"\bhello\b"), "othello", False),
    ],
)
def test_texts(rule: Rule, text: str, right: bool) -> None:
    assert rule.right(said(text)) is right


@each_of(
    ("answer", "right"),
    [
        (calling(("count_shapes", '{"shape": "star"}')), True),
        (calling(("count_shapes", '{"shape": "ring"}')), False),
        (calling(("count", '{"shape": "star"}')), False),
        (calling(("count_shapes", '{"shape": "st')), False),
        (calling(("count_shapes", '{"shape": "star"}'), ("count_shapes", '{"shape": "star"}')), False),
        (said("4"), False),
    ],
)
def test_a_call_where_it_fits(answer: dict[str, Any], right: bool) -> None:
    assert CALL.right(answer) is right


def test_no_call_where_it_does_not_fit() -> None:
    assert Called().right(said("red circle"))
    assert not Called().right(said(" "))
    assert not Called().right(calling(("count_shapes", '{"shape": "star"}'), text="Let me count."))


@each_of(
    ("boxes", "right"),
    [
        ([("box", (100, 100, 200, 200))], True),
        ([("box", (100, 100, 200, 151))], True),
        ([("box", (100, 100, 200, 149))], False),
        ([("quad", (100, 100, 200, 200))], False),
        ([("box", (100, 100, 200, 200)), ("box", (0, 0, 10, 10))], False),
        ([], False),
    ],
)
def test_boxes(boxes: list[tuple[str, tuple[int, int, int, int]]], right: bool) -> None:
    told = [{"ref": None, "kind": kind, "points": [at[:2], at[2:]], "picture": 0} for kind, at in boxes]
    assert Pointed(box=(100, 100, 200, 200)).right({"text": "<box>", "boxes": told}) is right


def test_a_model_that_does_not_point_is_wrong() -> None:
    assert not Pointed(box=(0, 0, 1, 1)).right({"text": "there"})


def test_overlap() -> None:
    assert overlap((0, 0, 2, 2), (1, 1, 3, 3)) == pytest.approx(1 / 7)
    assert overlap((0, 0, 1, 1), (2, 2, 3, 3)) == 0
    assert overlap((1, 1, 0, 0), (0, 0, 1, 1)) == 0  # corners the wrong way round


@each_of(
    # Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    ("right", "asked", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_intervals_are_the_published_ones(right: int, asked: int, low: float, high: float) -> None:
    assert wilson(right, asked) == pytest.approx((low, high), abs=6e-5)
