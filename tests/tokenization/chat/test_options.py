"""What may stand beside a picture or a video, in either dialect, and videos that are lists of pictures."""

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


@each_of(
    "options",
    [{}, {"fps": 2}, {"fps": 0.5, "max_pixels": 4000}, {"num_frames": 8, "min_pixels": 3136}, {"fps": None}],
)
def test_options_of_a_video(options: dict[str, Any]) -> None:
    expected = MediaOptions(**options)
    assert native({"video": "v.mp4", **options}).options == expected
    assert openai("video_url", {"url": "v.mp4", **options}).options == expected


def test_options_of_a_picture() -> None:
    bounds: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 100_352}
    for media in (native({"image": "a.png", **bounds}), openai("image_url", {"url": "a.png", **bounds})):
        assert media.options == MediaOptions(**bounds) and media.kind == "image"
    assert native({"image": "a.png"}).options == MediaOptions()


def test_detail_stands_beside_the_bounds() -> None:
    low = MediaOptions(low_detail=True)
    for detail in ("low", "high", "auto", "original", None):
        options = low if detail == "low" else MediaOptions()
        assert native({"image": "a.png", "detail": detail}).options == options
        assert openai("image_url", {"url": "a.png", "detail": detail}).options == options
    both = native({"image": "a.png", "detail": "low", "max_pixels": 4000, "min_pixels": 3136}).options
    assert both == MediaOptions(min_pixels=3136, max_pixels=4000, low_detail=True)


def test_a_complaint_lists_the_details() -> None:
    with pytest.raises(ChatError, match="one of 'auto', 'low', 'high', 'original'") as caught:
        openai("image_url", {"url": "a.png", "detail": "ultra"})
    assert caught.value.param == "messages[0].content[0].image_url.detail"


def test_a_list_of_pictures_is_a_video() -> None:
    frames = ["data:,a", "b.png"]
    for media, param in (
        (native({"video": frames, "fps": 2}), "inputs[0].video"),
        (openai("video_url", {"url": frames, "fps": 2}), "messages[0].content[0]"),
    ):
        assert (media.source, media.frames, media.param) == ("", ("data:,a", "b.png"), param)
        assert media.options == MediaOptions(fps=2)


@each_of(
    ("part", "param"),
    [
        ({"video": "v", "fps": 0}, "inputs[0].fps"),
        ({"video": "v", "fps": 5e-324}, "inputs[0].fps"),
        ({"video": "v", "fps": 10**400}, "inputs[0].fps"),
        ({"video": "v", "num_frames": 10**400}, "inputs[0].num_frames"),
        ({"video": "v", "fps": "2"}, "inputs[0].fps"),
        ({"video": "v", "fps": True}, "inputs[0].fps"),
        ({"video": "v", "num_frames": 2.5}, "inputs[0].num_frames"),
        ({"video": "v", "fps": 1, "num_frames": 2}, "inputs[0].num_frames"),
        ({"video": "v", "min_pixels": 2, "max_pixels": 1}, "inputs[0].min_pixels"),
        ({"video": "v", "detail": "low"}, "inputs[0].detail"),
        ({"video": []}, "inputs[0].video"),
        ({"video": ["a", 3]}, "inputs[0].video[1]"),
        ({"video": ["a", ""]}, "inputs[0].video[1]"),
        ({"image": ["a"]}, "inputs[0].image"),
        ({"image": "a", "fps": 2}, "inputs[0].fps"),
        ({"image": "a", "max_pixels": -1}, "inputs[0].max_pixels"),
        ({"image": "a", "detail": ["low"]}, "inputs[0].detail"),
        ({"audio": "a", "fps": 2}, "inputs[0].fps"),
        ({"text": "a", "fps": 2}, "inputs[0].fps"),
    ],
)
def test_errors_name_the_option(part: dict[str, Any], param: str) -> None:
    with pytest.raises(ChatError) as caught:
        native(part)
    assert caught.value.param == param


@each_of(
    ("kind", "value", "param"),
    [
        ("video_url", {"url": "v", "fps": 0}, "video_url.fps"),
        ("video_url", {"url": "v", "detail": "low"}, "video_url.detail"),
        ("video_url", {"url": []}, "video_url.url"),
        ("image_url", {"url": "v", "num_frames": 2}, "image_url.num_frames"),
        ("image_url", {"url": ["v"]}, "image_url.url"),
        ("audio_url", {"url": "v", "fps": 2}, "audio_url.fps"),
    ],
)
def test_openai_errors_name_the_option(kind: str, value: Any, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        openai(kind, value)
    assert caught.value.param == f"messages[0].content[0].{param}"
