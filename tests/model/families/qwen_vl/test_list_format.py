"""A turn in list format reads as the published tokenizer writes it; what is refused is named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from model.families.qwen_vl.chatml import Piece, Tag, TaggedPicture, Words
from model.families.qwen_vl.list_format import PICTURE_PREFIX, list_pieces
from tokenization.chat.dialects import chat_from_native
from tokenization.chat.errors import ChatError

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "qwen_vl_v1"


@pytest.fixture(scope="module", params=["tiny", "real"])
def golden(request: pytest.FixtureRequest) -> Any:
    return json.loads((GOLDEN / f"tokenizer_{request.param}.json").read_text(encoding="utf-8"))


def pieces(items: list[dict[str, Any]], prefix: str = PICTURE_PREFIX) -> list[Piece]:
    return list_pieces(chat_from_native(items).turns[0].parts, prefix)


def written(items: list[dict[str, Any]], prefix: str = PICTURE_PREFIX) -> str:
    """The pieces of a turn as the published tokenizer writes it: one string with tags and the images' names."""
    images = iter([item["image"] for item in items if "image" in item])
    said: list[str] = []
    for piece in pieces(items, prefix):
        if isinstance(piece, TaggedPicture):
            said.append(f"<img>{next(images)}</img>")
        else:
            said.append(piece.name if isinstance(piece, Tag) else piece.text)
    return "".join(said)


def test_golden_from_list_format(golden: dict[str, Any]) -> None:
    assert len(golden["from_list_format"]) == 4
    for entry in golden["from_list_format"]:
        assert written(entry["list"], "Picture {n}:") == entry["text"]
        assert written(entry["list"]) == re.sub("(Picture [0-9]:)", r"\1 ", entry["text"])


def test_pieces_of_a_turn() -> None:
    items: list[dict[str, Any]] = [
        {"text": "see <img>x</img> "}, {"image": "a.png"}, {"image": "data:image/png;base64,AA"}, {"text": "dogs at"},
        {"box": [[10, 20, 30, 40], [1, 2, 3.9, 4]], "ref": "a dog"}, {"text": ""}, {"text": "?"},
    ]  # fmt: skip
    assert pieces(items) == [
        Words("see <img>x</img> Picture 1: "), TaggedPicture(), Words("\nPicture 2: "), TaggedPicture(),
        Words("\ndogs at"),
        Tag("<ref>"), Words("a dog"), Tag("</ref>"), Tag("<box>"), Words("(10,20),(30,40)"), Tag("</box>"),
        Tag("<box>"), Words("(1,2),(3,4)"), Tag("</box>"), Words("?"),
    ]  # fmt: skip


def test_the_prefix_is_only_counted_never_formatted() -> None:
    assert written([{"image": "a"}], "{0}{n}{x}") == "{0}1{x}<img>a</img>\n"


def test_nothing_is_an_empty_turn() -> None:
    assert list_pieces([]) == []
    assert pieces([{"text": ""}]) == []


def test_a_name_that_ends_itself_is_refused() -> None:
    with pytest.raises(ChatError, match="^item 1: 'ref' holds </ref>"):
        pieces([{"text": "fine"}, {"box": [[1, 2, 3, 4]], "ref": "a</ref>"}])
