"""A turn in list format reads as the published tokenizer writes it; what is refused is named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from model.families.qwen_vl.chatml import Picture, Tag, Words
from model.families.qwen_vl.list_format import PICTURE_PREFIX, list_pieces

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "qwen_vl_v1"


@pytest.fixture(scope="module", params=["tiny", "real"])
def golden(request: pytest.FixtureRequest) -> Any:
    return json.loads((GOLDEN / f"tokenizer_{request.param}.json").read_text(encoding="utf-8"))


def written(items: list[dict[str, Any]], prefix: str = PICTURE_PREFIX) -> str:
    """The pieces of a turn as the published tokenizer writes it: one string with tags and the images' names."""
    images = [item["image"] for item in items if "image" in item]
    said: list[str] = []
    for piece in list_pieces(items, prefix):
        if isinstance(piece, Picture):
            said.append(f"<img>{images[piece.index]}</img>")
        else:
            said.append(piece.name if isinstance(piece, Tag) else piece.text)
    return "".join(said)


def test_golden_from_list_format(golden: dict[str, Any]) -> None:
    assert len(golden["from_list_format"]) == 4
    for entry in golden["from_list_format"]:
        assert written(entry["list"], "Picture {n}:") == entry["text"]
        assert written(entry["list"]) == re.sub("(Picture [0-9]:)", r"\1 ", entry["text"])


def test_pieces_of_a_turn() -> None:
    items: list[dict[str, object]] = [
        {"text": "see <img>x</img> "}, {"image": "a.png"}, {"image": "data:image/png;base64,AA"}, {"text": "dogs at"},
        {"box": [[10, 20, 30, 40], (1, 2, 3.9, 4)], "ref": "a dog"}, {"text": ""}, {"text": "?"},
    ]  # fmt: skip
    assert list_pieces(items, first_picture=3) == [
        Words("see <img>x</img> Picture 1: "), Picture(3), Words("\nPicture 2: "), Picture(4), Words("\ndogs at"),
        Tag("<ref>"), Words("a dog"), Tag("</ref>"), Tag("<box>"), Words("(10,20),(30,40)"), Tag("</box>"),
        Tag("<box>"), Words("(1,2),(3,4)"), Tag("</box>"), Words("?"),
    ]  # fmt: skip


def test_the_prefix_is_only_counted_never_formatted() -> None:
    assert written([{"image": "a"}], "{0}{n}{x}") == "{0}1{x}<img>a</img>\n"


def test_nothing_is_an_empty_turn() -> None:
    assert list_pieces([]) == []
    assert list_pieces([{"text": ""}]) == []


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({"box": [10, 100, 30, 200]}, "one flat box; write a list of boxes"),
        ({"box": [10.5, 100, 30, 200], "ref": "x"}, "one flat box"),
        ({"box": "(1,2),(3,4)"}, "'box' must be a list of boxes"),
        ({"box": ["(1,2),(3,4)"]}, "'box' must be a list of boxes"),
        ({"box": [[1, 2, 3]]}, "box 0 must be four numbers"),
        ({"box": [[1, 2, 3, 4], [1, 2, 3, "4"]]}, "box 1 must be four numbers"),
        ({"box": [[1, 2, 3, 4], 5]}, "box 1 must be four numbers"),
        ({"box": [[1, 2, 3, True]]}, "box 0 must be four numbers"),
        ({"box": [[1, 2, 3, float("nan")]]}, "box 0 must be four numbers"),
        ({"box": [[1, 2, 3, float("inf")]]}, "box 0 must be four numbers"),
        ({"box": [[1, 2, 3, 4]], "ref": 5}, "'ref' must be a string"),
        ({"box": [[1, 2, 3, 4]], "ref": "a</ref>"}, "'ref' holds </ref>"),
        ({"ref": "x"}, "exactly one of 'image', 'text', 'box'; it has 'ref'"),
        ({}, "it has no key"),
        ({"video": "a.mp4"}, "it has 'video'"),
        ({"image": "a.png", "text": "x"}, "it has 'image', 'text'"),
        ({"image": "a.png", "ref": "x"}, "'ref' does not go with 'image'"),
        ({"text": "x", "colour": "red"}, "'colour' does not go with 'text'"),
        ({"text": 5}, "'text' must be a string"),
        ({"image": None}, "'image' must be a string"),
        ({"image": "a</img>b"}, "'image' holds </img>"),
        ("a.png", "expected an object"),
    ],
)
def test_errors_name_the_index(item: Any, message: str) -> None:
    with pytest.raises(ValueError, match="^item 1: ") as caught:
        list_pieces([{"text": "fine"}, item])
    assert message in str(caught.value)
