"""A family is proven to place one pad for each kind of medium before it serves anybody."""

from types import SimpleNamespace
from typing import Any

import pytest

from configs.checkpoint import CheckpointError
from tests.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.placeholders import kinds_of
from tokenization.template_proof import prove_placeholders

PADS: dict[Any, int] = {"image": 7, "audio": 8}


def processor(said: dict[str, list[int] | str]) -> Any:
    """Renders what is said for the kind of the chat's one medium; words: it refuses with them."""

    def render(chat: Chat) -> list[int]:
        found = said[chat.media[0].kind]
        if isinstance(found, str):
            raise ChatError(found)
        return found

    return SimpleNamespace(
        modalities=frozenset(said),
        marks=PADS,
        origins={"chat template": "a.json"},
        fit=lambda chat: chat,
        render=render,
    )


def test_the_kinds_of_pads_stand_in_order() -> None:
    assert kinds_of([1, 8, 2, 7, 7], PADS) == ["audio", "image", "image"]


def test_one_place_for_each_kind_passes() -> None:
    prove_placeholders(processor({"image": [1, 7, 2], "audio": [8]}))
    prove_placeholders(processor({}))


@each_of(
    ("said", "message"),
    [
        ({"image": [1, 2], "audio": [8]}, "for one image, which the model takes (it has 0 places)"),
        ({"image": [7], "audio": [8, 8]}, "for one audio, which the model takes (it has 2 places)"),
        ({"image": [8]}, "for one image, which the model takes (it has its place for audio)"),
        ({"audio": "no such content"}, "for one audio, which the model takes (no such content)"),
    ],
)
def test_what_is_missing_is_named(said: dict[str, list[int] | str], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        prove_placeholders(processor(said))
    assert str(caught.value).startswith("a.json: the chat template has not exactly one place")
    assert message in str(caught.value)
