"""What a job is expected to take: larger for what is larger, and of all kinds on one scale."""

import pytest

from configs.serve import MediaConfig
from server.children.liveness import cost_of
from tests.server.doubles import chat_of
from tokenization.chat.parts import Chat, Kind, Media, Text, Turn
from tokenization.messages import Prepare

MIB = 1 << 20


def medium(kind: Kind, size: int, frames: int = 0) -> Media:
    source = "data:," + "x" * (size - 6)
    return Media(kind=kind, source="" if frames else source, frames=(source,) * frames, param="x")


def seconds_of_chat(chat: Chat) -> float:
    return cost_of(Prepare(request_id="a", chat=chat), MediaConfig()).seconds


def chat(*parts: Text | Media) -> Chat:
    return Chat(turns=(Turn(role="user", parts=parts, plain=False),))


def test_larger_takes_longer_and_a_thumbnail_less_than_a_video_of_its_size() -> None:
    order = [
        seconds_of_chat(chat_of("text")),
        seconds_of_chat(chat_of("image")),
        seconds_of_chat(chat(medium("image", 4 * MIB))),
        seconds_of_chat(chat(medium("video", 4 * MIB))),
        seconds_of_chat(chat(medium("video", 4 * MIB), medium("video", 4 * MIB))),
    ]
    assert order == sorted(order) and len(set(order)) == len(order) and order[0] < 0.01 < 0.5 < order[-1]


def test_a_source_is_no_text_and_a_list_of_pictures_is_as_dear_as_they_are() -> None:
    alone, beside = chat(medium("image", MIB)), chat(medium("image", MIB), Text(text="x" * MIB))
    of_text = seconds_of_chat(chat(Text(text="x" * MIB))) - seconds_of_chat(chat())
    assert seconds_of_chat(beside) - seconds_of_chat(alone) == pytest.approx(of_text)
    pictures = chat(*[medium("image", MIB)] * 30)
    assert seconds_of_chat(chat(medium("video", MIB, 30))) == pytest.approx(seconds_of_chat(pictures))


def test_all_characters_are_sent() -> None:
    whole = chat(Text(text="x" * 10), medium("image", 20), medium("video", 30, 2))
    assert cost_of(Prepare(request_id="a", chat=whole), MediaConfig()).size == 10 + 20 + 60


def test_what_lies_behind_a_path_is_not_taken_for_nothing() -> None:
    path = Media(kind="video", source="a.mp4", param="x")
    assert seconds_of_chat(chat(path)) > seconds_of_chat(chat(medium("video", 1000)))
