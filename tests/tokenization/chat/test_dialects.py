"""Every dialect becomes the same Chat, and what is wrong is named by its path."""

from typing import Any

import pytest

from tests.tables import each_of
from tokenization.chat.dialects import chat_from_native, chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Boxes, Media, Text, Turn


def text(value: str) -> Text:
    return Text(text=value)


def user(param: str, *parts: Text | Media) -> Turn:
    return Turn(role="user", parts=parts, plain=False, param=param)


def test_native_with_history_and_system() -> None:
    chat = chat_from_native(
        {
            "system": "Be brief.",
            "history": [{"inputs": [{"image": "a.png"}, {"text": "what?"}], "text": "a cat"}],
            "inputs": [{"text": "and here?"}, {"image": "data:image/png;base64,AA=="}],
        }
    )
    what = text("what?")
    assert chat.turns == (
        Turn(role="system", parts=(text("Be brief."),), plain=True, param="system"),
        user("history[0].inputs", Media(kind="image", source="a.png", param="history[0].inputs[0].image"), what),
        Turn(role="assistant", parts=(text("a cat"),), plain=True, param="history[0].text"),
        user(
            "inputs",
            text("and here?"),
            Media(kind="image", source="data:image/png;base64,AA==", param="inputs[1].image"),
        ),
    )
    assert [media.source for media in chat.media] == ["a.png", "data:image/png;base64,AA=="]


def test_a_bare_list_is_inputs() -> None:
    assert chat_from_native([{"text": "hi"}]) == chat_from_native({"inputs": [{"text": "hi"}], "history": None})


def test_openai_roles_and_contents() -> None:
    image = {"type": "image_url", "image_url": {"url": "a.png", "detail": "high"}}
    chat = chat_from_openai(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "", "name": "ann"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": None,
                "function_call": None,
                "audio": None,
                "refusal": "no",
                "annotations": [{}],
                "reasoning": "",
                "reasoning_content": "hm",
                "cache_control": {"type": "x"},
                "new": 1,
            },
            {
                "role": "user",
                "content": [{"type": "text", "text": "two"}, image, {"type": "image_url", "image_url": "b"}],
            },
        ]
    )
    assert chat.turns == (
        Turn(role="system", parts=(text("Be brief."),), plain=True, param="messages[0]"),
        Turn(role="user", parts=(text(""),), plain=True, name="ann", param="messages[1]"),
        Turn(role="assistant", parts=(), plain=True, reasoning="hm", param="messages[2]"),
        user(
            "messages[3]",
            text("two"),
            Media(kind="image", source="a.png", param="messages[3].content[1]"),
            Media(kind="image", source="b", param="messages[3].content[2]"),
        ),
    )


@pytest.mark.parametrize(
    "part, kind, source",
    [
        ({"video": "v.mp4"}, "video", "v.mp4"),
        ({"audio": "a.wav"}, "audio", "a.wav"),
    ],
)
def test_native_video_and_audio_are_parsed(part: dict[str, str], kind: str, source: str) -> None:
    (media,) = chat_from_native([part]).media
    assert (media.kind, media.source) == (kind, source)


@each_of(
    "part, kind, source",
    [
        ({"type": "video_url", "video_url": {"url": "v.mp4"}}, "video", "v.mp4"),
        ({"type": "audio_url", "audio_url": "a.wav"}, "audio", "a.wav"),
        (
            {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
            "audio",
            "data:audio/wav;base64,AAAA",
        ),
    ],
)
def test_openai_video_and_audio_are_parsed(part: dict[str, Any], kind: str, source: str) -> None:
    (media,) = chat_from_openai([{"role": "user", "content": [part]}]).media
    assert (media.kind, media.source) == (kind, source)


@each_of(
    "body, param",
    [
        ({}, "inputs"),
        ({"inputs": []}, "inputs"),
        ([], "inputs"),
        ({"inputs": "hi"}, "inputs"),
        ("hi", "inputs"),
        ({"inputs": ["hi"]}, "inputs[0]"),
        ({"inputs": [{"text": "a"}, {"picture": "x"}]}, "inputs[1]"),
        ({"inputs": [{}]}, "inputs[0]"),
        ({"inputs": [{"text": "a"}, {"text": "b"}, {"image": "x", "video": "y"}]}, "inputs[2]"),
        ({"inputs": [{"image": "x", "text": "y"}]}, "inputs[0]"),
        ({"inputs": [{"image": "x", "max_pixels": 0}]}, "inputs[0].max_pixels"),
        ({"inputs": [{"image": 3}]}, "inputs[0].image"),
        ({"inputs": [{"image": ""}]}, "inputs[0].image"),
        ({"inputs": [{"image": ["a", "b"]}]}, "inputs[0].image"),
        ({"inputs": [{"text": None}]}, "inputs[0].text"),
        ({"inputs": [{"text": "\ud800"}]}, "inputs[0].text"),
        ({"inputs": [{"ref": "cat"}]}, "inputs[0]"),
        ({"inputs": [{"text": "x", "box": [[1, 2, 3, 4]]}]}, "inputs[0]"),
        ({"inputs": [{"box": [1, 2, 3, 4]}]}, "inputs[0].box"),
        ({"inputs": [{"box": []}]}, "inputs[0].box"),
        ({"inputs": [{"box": "(1,2),(3,4)"}]}, "inputs[0].box"),
        ({"inputs": [{"text": "a"}, {"box": [[1, 2, 3, 4], [1, 2, 3]]}]}, "inputs[1].box[1]"),
        ({"inputs": [{"box": [[1, 2, 3, 1001]]}]}, "inputs[0].box[0]"),
        ({"inputs": [{"box": [[1, 2, 3, True]]}]}, "inputs[0].box[0]"),
        ({"inputs": [{"box": [[1, 2, 3, 4]], "ref": 3}]}, "inputs[0].ref"),
        ({"inputs": [{"box": [[1, 2, 3, 4]], "label": "x"}]}, "inputs[0].label"),
        ({"inputs": [{"text": "a"}], "system": 3}, "system"),
        ({"inputs": [{"text": "a"}], "history": {}}, "history"),
        ({"inputs": [{"text": "a"}], "history": ["x"]}, "history[0]"),
        ({"inputs": [{"text": "a"}], "history": [{"inputs": [{"text": "a"}]}]}, "history[0].text"),
        ({"inputs": [{"text": "a"}], "history": [{"inputs": [], "text": "b"}]}, "history[0].inputs"),
        ({"inputs": [{"text": "a"}], "history": [{"inputs": [{"text": "a"}, 1], "text": ""}]}, "history[0].inputs[1]"),
        ({"inputs": [{"text": "a"}], "history": [{"inputs": [{"text": "a"}], "text": "", "x": 1}]}, "history[0].x"),
    ],
)
def test_native_errors_name_the_field(body: Any, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_from_native(body)
    assert caught.value.param == param
    caught.value.message.encode("utf-8")  # can be sent as an answer


def test_boxes_are_parts() -> None:
    chat = chat_from_native([{"box": [[1, 2.9, 3, 1000], [0, 0, 5, 5]], "ref": "the cat"}, {"box": [[1, 2, 3, 4]]}])
    assert chat.turns[0].parts == (
        Boxes(boxes=((1, 2, 3, 1000), (0, 0, 5, 5)), ref="the cat", param="inputs[0].box"),
        Boxes(boxes=((1, 2, 3, 4),), ref=None, param="inputs[1].box"),
    )


def content(*parts: Any) -> list[Any]:
    return [{"role": "system", "content": "s"}, {"role": "user", "content": list(parts)}]


OK = {"type": "text", "text": "a"}


@each_of(
    "messages, param",
    [
        ([], "messages"),
        ({}, "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "tool", "content": "x", "tool_call_id": 3}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": 3}], "messages[0].content"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "content": None, "audio": {"id": "a"}}], "messages[0].audio"),
        ([{"role": "assistant", "content": "x", "prefix": True}], "messages[0].prefix"),
        ([{"content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "system", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": "\udfff"}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}], "messages[0].tool_calls[0].function"),
        (content(), "messages[1].content"),
        (content("x"), "messages[1].content[0]"),
        (content(OK, OK, OK, {"type": "picture", "picture": "x"}), "messages[1].content[3]"),
        (content({"text": "x"}), "messages[1].content[0]"),
        (content({"type": "text"}), "messages[1].content[0]"),
        (content({"type": "text", "text": 3}), "messages[1].content[0].text"),
        (content({"type": "text", "text": "x", "fps": 1}), "messages[1].content[0].fps"),
        (content({"type": "refusal", "text": "x"}), "messages[1].content[0]"),
        (content({"type": "video_url", "video_url": "a", "fps": 1}), "messages[1].content[0].fps"),
        (content({"type": "image_url", "image_url": None, "uuid": "x"}), "messages[1].content[0].image_url"),
        (content(OK, {"type": "image_url", "image_url": "a", "video_url": "b"}), "messages[1].content[1]"),
        (content({"type": "image_url", "image_url": "a", "text": "b"}), "messages[1].content[0]"),
        (content({"type": "image_url", "image_url": 3}), "messages[1].content[0].image_url"),
        (content({"type": "image_url", "image_url": {}}), "messages[1].content[0].image_url.url"),
        (content({"type": "image_url", "image_url": {"url": ""}}), "messages[1].content[0].image_url.url"),
        (content({"type": "image_url", "image_url": {"url": "a", "fps": 1}}), "messages[1].content[0].image_url.fps"),
        (
            content({"type": "image_url", "image_url": {"url": "a", "detail": "best"}}),
            "messages[1].content[0].image_url.detail",
        ),
        (content({"type": "input_audio", "input_audio": "x"}), "messages[1].content[0].input_audio"),
        (
            content({"type": "input_audio", "input_audio": {"data": "AA", "format": "midi"}}),
            "messages[1].content[0].input_audio.format",
        ),
    ],
)
def test_openai_errors_name_the_field(messages: Any, param: str) -> None:
    with pytest.raises(ChatError) as caught:
        chat_from_openai(messages)
    assert caught.value.param == param
    caught.value.message.encode("utf-8")


def test_a_client_s_long_key_does_not_fill_the_answer() -> None:
    with pytest.raises(ChatError) as caught:
        chat_from_native([{"text": "a", "k" * 10_000: 1}])
    assert len(caught.value.message) < 300 and len(caught.value.param or "") < 100


def test_keys_of_a_part_that_change_nothing_are_ignored() -> None:
    cached = {"cache_control": {"type": "ephemeral"}, "uuid": "u", "extra": 1}
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "a", "annotations": [], "image_url": None, **cached},
        {"type": "video_url", "video_url": {"url": "v", "fps": 2, "uuid": "u", "x": {}}, "text": None, **cached},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav", "id": 1}, **cached},
    ]
    bare: list[dict[str, Any]] = [
        {"type": "text", "text": "a"},
        {"type": "video_url", "video_url": {"url": "v", "fps": 2}},
        {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}},
    ]
    assert chat_from_openai(content(*parts)) == chat_from_openai(content(*bare))


def test_an_option_in_the_wrong_place_is_told_its_own() -> None:
    with pytest.raises(ChatError, match="'min_pixels' has no effect here; it stands beside 'url' in 'image_url'"):
        chat_from_openai(content({"type": "image_url", "image_url": "a", "min_pixels": 4000}))


def test_a_refusal_is_an_assistants_text() -> None:
    said = chat_from_openai([{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, OK]}])
    assert said.turns[0].parts == (text("no"), text("a"))


@each_of("role", ["system", "assistant", "tool"])
def test_media_stand_in_any_message(role: str) -> None:
    chat = chat_from_openai([{"role": role, "content": [OK, {"type": "image_url", "image_url": "a"}]}])
    assert [media.param for media in chat.media] == ["messages[0].content[1]"]
