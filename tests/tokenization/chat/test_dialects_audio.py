"""Sounds, and videos whose sound is heard, in either dialect."""

from typing import Any

import pytest

from tests.tables import each_of
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Media


def native(part: dict[str, Any]) -> Media:
    return chat_from_native([part]).media[0]


def openai(kind: str, value: Any) -> Media:
    return chat_from_openai([{"role": "user", "content": [{"type": kind, kind: value}]}]).media[0]


@each_of("name", ["wav", "mp3", "flac", "ogg", "opus", "m4a", "aac", "webm"])
def test_names_of_formats(name: str) -> None:
    media = openai("input_audio", {"data": "AAAA", "format": name})
    assert media == Media(kind="audio", source=f"data:audio/{name};base64,AAAA", param="messages[0].content[0]")


@each_of("head", ["data:audio/mpeg;base64,", "DATA:;base64,", "data:audio/wav; base64,"])
def test_data_that_is_a_url_already_is_taken_as_one(head: str) -> None:
    assert openai("input_audio", {"data": f"{head}AAAA", "format": "wav"}).source == f"{head}AAAA"


@each_of("name", ["midi", "WAV", "", None, 3, ["wav"]])
def test_an_unknown_format_is_told_which_are_known(name: Any) -> None:
    with pytest.raises(ChatError, match="'wav', 'mp3', 'flac', 'ogg', 'opus', 'm4a', 'aac', 'webm'") as caught:
        openai("input_audio", {"data": "AAAA", "format": name})
    assert caught.value.param == "messages[0].content[0].input_audio.format"


def test_audio_by_url() -> None:
    for media in (openai("audio_url", "a.ogg"), openai("audio_url", {"url": "a.ogg"})):
        assert (media.kind, media.source, media.param) == ("audio", "a.ogg", "messages[0].content[0]")
    assert native({"audio": "a.ogg"}).kind == "audio"


@each_of(("value", "heard"), [(True, True), (False, False), (None, None)])
def test_the_sound_of_a_video(value: bool | None, heard: bool | None) -> None:
    options = MediaOptions(fps=1, use_audio=heard)
    assert native({"video": "v.mp4", "fps": 1, "use_audio_in_video": value}).options == options
    assert openai("video_url", {"url": "v.mp4", "fps": 1, "use_audio_in_video": value}).options == options
    assert native({"video": "v.mp4"}).options == MediaOptions()


@each_of("value", ["true", 1, 0, [], {}, "x"])
def test_only_true_and_false_are_wishes(value: Any) -> None:
    with pytest.raises(ChatError, match="true or false") as caught:
        native({"video": "v.mp4", "use_audio_in_video": value})
    assert caught.value.param == "inputs[0].use_audio_in_video"
    with pytest.raises(ChatError) as caught:
        openai("video_url", {"url": "v.mp4", "use_audio_in_video": value})
    assert caught.value.param == "messages[0].content[0].video_url.use_audio_in_video"


def test_only_videos_bring_sound_along() -> None:
    for kind in ("image", "audio"):
        with pytest.raises(ChatError, match="not known here") as caught:
            native({kind: "x", "use_audio_in_video": True})
        assert caught.value.param == "inputs[0].use_audio_in_video"
        with pytest.raises(ChatError):
            openai(f"{kind}_url", {"url": "x", "use_audio_in_video": True})
