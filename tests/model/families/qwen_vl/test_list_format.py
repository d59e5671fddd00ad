"""The original's list form, both ways, and what it refuses."""

import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.families.qwen_vl.chatml import Picture, Tag, Words
from model.families.qwen_vl.list_format import from_list_format, list_pieces, to_list_format

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "qwen_vl_v1"


@pytest.fixture(scope="module", params=["tiny", "real"])
def golden(request: pytest.FixtureRequest) -> Any:
    return json.loads((GOLDEN / f"tokenizer_{request.param}.json").read_text(encoding="utf-8"))


def test_golden_from_list_format(golden: dict[str, Any]) -> None:
    assert len(golden["from_list_format"]) == 4
    for entry in golden["from_list_format"]:
        assert from_list_format(entry["list"], "Picture {n}:") == entry["text"]
        assert from_list_format(entry["list"]) == re.sub("(Picture [0-9]:)", r"\1 ", entry["text"])


def test_golden_to_list_format(golden: dict[str, Any]) -> None:
    assert len(golden["to_list_format"]) == 4
    for entry in golden["to_list_format"]:
        assert to_list_format(entry["text"]) == entry["list"]


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
    assert from_list_format([{"image": "a"}], "{0}{n}{x}") == "{0}1{x}<img>a</img>\n"


def test_nothing_is_an_empty_turn() -> None:
    assert from_list_format([]) == ""
    assert list_pieces([{"text": ""}]) == []
    assert to_list_format("") == []


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
    for read in (from_list_format, list_pieces):
        with pytest.raises(ValueError, match="^item 1: ") as caught:
            read([{"text": "fine"}, item])
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ab<img>x", "<img> at character 2 has no </img>"),
        ("<ref>a</box>", "<ref> at character 0 has no </ref>"),
        ("<box>(1,2)</box><quad>", "<quad> at character 16 has no </quad>"),
    ],
)
def test_an_unclosed_tag_is_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        to_list_format(text)


def test_end_tags_alone_are_text_and_tags_do_not_nest() -> None:
    assert to_list_format("a</ref>b") == [{"text": "a</ref>b"}]
    assert to_list_format("<ref>a<box>(1,2)</box></ref>e\u0301") == [{"ref": "a<box>(1,2)</box>"}, {"text": "\u00e9"}]


WORDS = st.text(st.characters(exclude_characters="<", categories=["L", "N", "P", "Z", "S", "M", "Cc"]), min_size=1)


@given(st.lists(st.fixed_dictionaries({"image": WORDS}) | st.fixed_dictionaries({"text": WORDS}), max_size=6))
def test_what_was_written_is_read_back(items: list[dict[str, str]]) -> None:
    written = from_list_format(items, "")
    read = to_list_format(written)
    assert [item["image"] for item in read if "image" in item] == [
        unicodedata.normalize("NFC", item["image"]) for item in items if "image" in item
    ]
    again = "".join(f"<img>{item['image']}</img>" if "image" in item else item["text"] for item in read)
    assert again == unicodedata.normalize("NFC", written)
