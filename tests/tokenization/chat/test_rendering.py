"""How a chat becomes a prompt, as a request's body says it: the end of the prompt, variables, options of all media."""

import random
import time
from typing import Any

import pytest

from tests.tables import each_of
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.options import MediaOptions
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import with_rendering
from tokenization.chat.template_variables import MAX_BYTES, MAX_DEPTH, RESERVED, refuse_special
from tokenization.text.tokenizer import NAMES

ASKED: list[Any] = [{"role": "user", "content": "Hi"}]
BEGUN: list[Any] = [*ASKED, {"role": "assistant", "content": "Well"}]
SPECIAL = ("<|im_start|>", "<|im_end|>", "</s>")


def read(messages: list[Any] | None = None, **body: Any) -> Chat:
    return with_rendering(chat_from_openai(messages or ASKED), body)


def refused(messages: list[Any] | None = None, **body: Any) -> ChatError:
    with pytest.raises(ChatError) as caught:
        read(messages, **body)
    return caught.value


def nested(depth: int) -> Any:
    return {"a": nested(depth - 1)} if depth else 1


# ---- the end of the prompt


def test_a_body_that_says_nothing_opens_an_answer() -> None:
    for body in (
        {},
        {"add_generation_prompt": True},
        {"continue_final_message": False},
        {"continue_final_message": None},
    ):
        assert read(BEGUN, **body) == chat_from_openai(BEGUN)
    assert read().add_generation_prompt and not read().continue_final_message


def test_an_answer_is_continued_instead_of_opened() -> None:
    for body in ({}, {"add_generation_prompt": False}, {"add_generation_prompt": None}):
        chat = read(BEGUN, continue_final_message=True, **body)
        assert chat.continue_final_message and not chat.add_generation_prompt
    assert not read(add_generation_prompt=False).add_generation_prompt


def test_a_prompt_cannot_end_in_two_ways() -> None:
    error = refused(BEGUN, continue_final_message=True, add_generation_prompt=True)
    assert error.param == "continue_final_message" and "add_generation_prompt" in error.message


@each_of("last", [[], [{"role": "assistant"}], [{"role": "assistant", "content": None}]])
def test_only_an_assistants_text_is_continued(last: list[Any]) -> None:
    assert refused([*ASKED, *last], continue_final_message=True).param == "continue_final_message"


@each_of("name", ["continue_final_message", "add_generation_prompt"])
@each_of("value", [1, "true", [], {}])
def test_a_flag_is_true_or_false(name: str, value: Any) -> None:
    assert refused(BEGUN, **{name: value}).param == name


# ---- variables


def test_variables_arrive_as_they_are() -> None:
    given = {"add_vision_id": True, "style": "brief", "list": [1, 2.5, None, {"a": "ü"}], "big": -(1 << 63)}
    assert read(chat_template_kwargs=given).template_kwargs == given
    assert read(chat_template_kwargs=None).template_kwargs == read(chat_template_kwargs={}).template_kwargs == {}


@each_of(
    "name", ["messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize", "_x", "__class__",
             "range", "self", "raise_exception", *NAMES]
)  # fmt: skip
def test_a_reserved_name_is_refused(name: str) -> None:
    error = refused(chat_template_kwargs={name: "x"})
    assert error.param == f"chat_template_kwargs.{name}" and "reserved" in error.message


def test_every_named_token_is_reserved() -> None:
    assert set(NAMES) <= RESERVED


@each_of(
    "value, param",
    [
        ([], "chat_template_kwargs"),
        ("x", "chat_template_kwargs"),
        ({"a-b": 1}, "chat_template_kwargs.a-b"),
        ({"": 1}, "chat_template_kwargs."),
        ({"x" * 300: 1, "1": 2}, "chat_template_kwargs.1"),
        ({"a": nested(MAX_DEPTH)}, "chat_template_kwargs.a"),
        ({"a": [1 << 63]}, "chat_template_kwargs.a"),
        ({"a": [1e400]}, "chat_template_kwargs.a"),
        ({"a": "x" * 20000}, "chat_template_kwargs"),
    ],
)
def test_variables_that_are_refused(value: Any, param: str) -> None:
    assert refused(chat_template_kwargs=value).param == param


def test_long_variables_are_not_written_to_be_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 MB of them held the interpreter for half a second."""
    monkeypatch.setattr("msgspec.json.encode", None)
    assert f"{MAX_BYTES + 2} bytes" in refused(chat_template_kwargs={"a": ["x" * MAX_BYTES, {"b": 1}]}).message


def test_variables_within_their_bounds() -> None:
    read(chat_template_kwargs={"a": nested(MAX_DEPTH - 1), "b": "x" * 16000})


@each_of(
    "value",
    [
        "<|im_end|>",
        "say <|im_start|>system",
        ["a", {"b": "<|im_"}],
        {"<|im_end|>": 1},
        "m_end|> x",
        "a <",
        "</s",
        "> b",
    ],
)
def test_no_text_can_become_a_special_token(value: Any) -> None:
    with pytest.raises(ChatError) as caught:
        refuse_special({"v": value}, SPECIAL)
    assert caught.value.param == "chat_template_kwargs"


def test_many_texts_and_many_tokens_cost_little() -> None:
    """Each text beside the beginnings and ends of a thousand tokens, one after the other, took 0.35 s."""
    special = [f"<|reserved_special_token_{i}|>" for i in range(1004)]
    texts = ["ab"] * (MAX_BYTES // 5)
    start = time.process_time()
    refuse_special({"v": texts}, special)
    assert time.process_time() - start < 0.15
    for text in ("<|reserved_special_token_7", "oken_1003|>", "x<|reserved_special_token_9|>y"):
        with pytest.raises(ChatError):
            refuse_special({"v": [*texts, text]}, special)
    refuse_special({"v": "a"}, ())


def test_what_may_become_a_token_is_found_wherever_it_lies() -> None:
    """As each text is beside each token."""
    rng = random.Random(0)
    special = ["<a>", "<ab>", "b<", "<<a"]
    for _ in range(3000):
        texts = ["".join(rng.choices("<ab>x", k=rng.randrange(5))) for _ in range(rng.randrange(4))]
        wrong = any(
            token in text or any(text.endswith(token[:n]) or text.startswith(token[n:]) for n in range(1, len(token)))
            for text in texts
            for token in special
        )
        try:
            refuse_special({"v": texts}, special)
        except ChatError:
            assert wrong, texts
        else:
            assert not wrong, texts


@each_of("value", [True, 3, None, "plain", "1 < 2", "a|b", [["x"]], {"k": "<p> and </p> "}])
def test_other_values_pass(value: Any) -> None:
    refuse_special({"v": value}, SPECIAL)


# ---- options of all media


def test_options_hold_for_every_medium_that_says_nothing_itself() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "a.png"}},
        {"type": "image_url", "image_url": {"url": "b.png", "max_pixels": 4000}},
        {"type": "video_url", "video_url": {"url": "c.mp4"}},
        {"type": "video_url", "video_url": {"url": "d.mp4", "num_frames": 4, "use_audio_in_video": False}},
        {"type": "audio_url", "audio_url": {"url": "e.wav"}},
    ]
    options = {"min_pixels": 3136, "max_pixels": 8000, "fps": 3, "use_audio_in_video": True}
    chat = read([{"role": "user", "content": parts}], mm_processor_kwargs=options)
    bounds: dict[str, Any] = {"min_pixels": 3136, "max_pixels": 8000}
    assert [medium.options for medium in chat.media] == [
        MediaOptions(**bounds),
        MediaOptions(min_pixels=3136, max_pixels=4000),
        MediaOptions(**bounds, fps=3, use_audio=True),
        MediaOptions(**bounds, num_frames=4, use_audio=False),
        MediaOptions(),
    ]


def test_a_mediums_own_bound_beats_one_that_contradicts_it() -> None:
    own = MediaOptions(max_pixels=1000)
    assert own.over(MediaOptions(min_pixels=2000), "image") == own
    assert MediaOptions(min_pixels=9).over(MediaOptions(max_pixels=8), "video") == MediaOptions(min_pixels=9)


def test_size_names_the_bounds_as_a_checkpoint_does() -> None:
    size = {"shortest_edge": 3136, "longest_edge": 100352}
    assert read(mm_processor_kwargs={"size": size}).media_options == MediaOptions(min_pixels=3136, max_pixels=100352)
    both = read(mm_processor_kwargs={"max_pixels": 4000, "size": {"longest_edge": 9000}})
    assert both.media_options == MediaOptions(max_pixels=4000)
    for nothing in (None, {}, {"fps": None, "size": None}):
        assert read(mm_processor_kwargs=nothing).media_options == MediaOptions()


@each_of(
    "value, param",
    [
        ([], ""),
        ({"num_crops": 4}, ".num_crops"),
        ({"detail": "low"}, ".detail"),
        ({"images_kwargs": {}}, ".images_kwargs"),
        ({"max_pixels": "many"}, ".max_pixels"),
        ({"max_pixels": 0}, ".max_pixels"),
        ({"min_pixels": 2, "max_pixels": 1}, ".min_pixels"),
        ({"fps": 1, "num_frames": 2}, ".num_frames"),
        ({"use_audio_in_video": 1}, ".use_audio_in_video"),
        ({"size": 3}, ".size"),
        ({"size": {"height": 3}}, ".size"),
        ({"size": {"shortest_edge": True}}, ".size.shortest_edge"),
        ({"size": {"longest_edge": 0}}, ".size.longest_edge"),
        ({"size": {"shortest_edge": 2, "longest_edge": 1}}, ".size.shortest_edge"),
        ({"size": {"longest_edge": 1}, "min_pixels": 2}, ".min_pixels"),
        ({"size": {"shortest_edge": True}, "min_pixels": 0}, ".min_pixels"),
    ],
)
def test_options_that_are_refused(value: Any, param: str) -> None:
    error = refused(mm_processor_kwargs=value)
    assert error.param == f"mm_processor_kwargs{param}" and error.message.startswith(f"{error.param}: ")


def test_a_complaint_names_both_bounds_as_the_body_does() -> None:
    size = {"shortest_edge": 2, "longest_edge": 1}
    expected = "mm_processor_kwargs.size.shortest_edge: shortest_edge must not be greater than longest_edge"
    assert refused(mm_processor_kwargs={"size": size}).message == expected
