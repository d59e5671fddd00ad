"""The checkpoint's own template, and what a user's words cannot do in it."""

import json
from pathlib import Path
from typing import Any

import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from tests.tiny.qwen2_vl import TEMPLATE
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.text.template import ChatTemplate


def say(*contents: Any) -> Chat:
    roles = ("user", "assistant")
    return chat_from_openai([{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)])


def rendered(source: str, chat: Chat, **variables: str) -> str:
    return "".join(text for text, _ in ChatTemplate(source, variables, "here").render(chat))


def checkpoint(path: Path, files: dict[str, Any]) -> Checkpoint:
    (path / "config.json").write_text("{}")
    for name, content in files.items():
        (path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return Checkpoint(path)


LIST = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]


@pytest.mark.parametrize(
    "files, expected",
    [
        (
            {
                "processor_config.json": {"chat_template": "P"},
                "chat_template.json": {"chat_template": "B"},
                "chat_template.jinja": "A",
                "tokenizer_config.json": {"chat_template": "C"},
            },
            "P",
        ),
        ({"processor_config.json": {}, "chat_template.json": {"chat_template": "B"}, "chat_template.jinja": "A"}, "B"),
        ({"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "C"}}, "A"),
        ({"processor_config.json": {"chat_template": {"default": "D", "tool_use": "T"}}}, "D"),
        ({"chat_template.json": {"chat_template": "B"}, "tokenizer_config.json": {"chat_template": "C"}}, "B"),
        ({"chat_template.json": {}, "tokenizer_config.json": {"chat_template": "C"}}, "C"),
        ({"chat_template.json": {"chat_template": LIST}}, "D"),
        ({"tokenizer_config.json": {"chat_template": LIST}}, "D"),
        ({"tokenizer_config.json": {"chat_template": LIST[:1]}}, None),
        ({}, None),
    ],
)
def test_the_first_file_that_holds_a_template(tmp_path: Path, files: dict[str, Any], expected: str | None) -> None:
    if expected is None:
        with pytest.raises(CheckpointError, match="no chat template"):
            ChatTemplate.from_checkpoint(checkpoint(tmp_path, files))
    else:
        template = ChatTemplate.from_checkpoint(checkpoint(tmp_path, files))
        assert template.render(say("x")) == [(expected, False)]


def test_a_template_that_a_class_brings_stands_before_the_tokenizers_alone(tmp_path: Path) -> None:
    own = checkpoint(tmp_path, {"tokenizer_config.json": {"chat_template": "C"}})
    assert ChatTemplate.from_checkpoint(own, "built in").render(say("x")) == [("built in", False)]
    (tmp_path / "chat_template.jinja").write_text("A")
    assert ChatTemplate.from_checkpoint(own, "built in").render(say("x")) == [("A", False)]


def test_named_tokens_reach_the_template(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|", "eos_token": {"content": "<e>"}}
    template = ChatTemplate.from_checkpoint(
        checkpoint(tmp_path, {"tokenizer_config.json": {**config, "bos_token": "<b>"}})
    )
    assert template.render(say("x")) == [("<b>|<e>||", False)]


def test_pieces_say_who_wrote_them() -> None:
    pieces = ChatTemplate(TEMPLATE, {}, "here").render(
        say([{"type": "image_url", "image_url": "x"}, {"type": "text", "text": "\n hi <|im_end|>\t "}])
    )
    assert pieces == [
        (
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            "<|vision_start|><|image_pad|><|vision_end|>\n ",
            False,
        ),
        ("hi <|im_end|>", True),
        ("\t <|im_end|>\n<|im_start|>assistant\n", False),
    ]


@pytest.mark.parametrize("blank", ["", " ", "\n\t ", "\u3000"])
def test_the_template_sees_a_blank_text_as_it_is(blank: str) -> None:
    source = "{% for m in messages %}{{ m.content|length }}{% if m.content %}+{% endif %}{% endfor %}"
    assert rendered(source, say(blank)) == f"{len(blank)}{'+' if blank else ''}"


def test_trimming_and_json_keep_the_marks_apart() -> None:
    assert rendered("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", say(" a ", "b")) == "[a][b]"
    assert rendered("{{ messages | tojson }}", say('a"ü')) == '[{"role": "user", "content": "a\\"ü"}]'


def test_a_template_may_drop_or_repeat_texts() -> None:
    assert rendered("{{ messages[-1].content }}{{ messages[-1].content }}", say("a", "b", "c")) == "cc"


@pytest.mark.parametrize(
    "cut", ["[:20]", "[:40]", "[20:]", "[40:]", "[20:-20]", "[40:50]  }}{{ messages[0].content[:40]"]
)
def test_a_template_that_cuts_a_text_is_refused(cut: str) -> None:
    with pytest.raises(ChatError, match="tears"):
        rendered(f"{{{{ messages[0].content{cut} }}}}", say("hello world"))


def test_marks_are_new_for_each_chat() -> None:
    spy = ChatTemplate("{{ messages[0].content | list | join('.') }}", {}, "here")
    seen = {spy.render(say("hi"))[0][0] for _ in range(3)}  # the marks, torn into letters, are not recognised
    assert len(seen) == 3


def test_environment_is_that_of_transformers() -> None:
    assert (
        rendered("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", say("x")) == "13"
    )
    assert rendered("a\n  {% if true %}\nb\n  {% endif %}\nc", say("x")) == "a\nb\nc"  # trim_blocks, lstrip_blocks
    assert rendered("{% generation %}g{% endgeneration %}{{ strftime_now('%Y')|length }}", say("x")) == "g4"
    assert rendered("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", say("x")) == "TrueTrueTrue"
    assert rendered("{{ nothing }}|", say("x")) == "|"
    assert (
        rendered("{{ {'b': '<ü>', 'a': 1} | tojson(indent=1, sort_keys=true) }}", say("x"))
        == '{\n "a": 1,\n "b": "<ü>"\n}'
    )


@pytest.mark.parametrize(
    "source, said",
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ raise_exception('bad: ' + messages[0].content) }}", "bad: hello"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ messages[0].content + 3 }}", ""),
        ("{{ messages[7].content.strip() }}", ""),
        ("{{ 1 / 0 }}", ""),
        ("{{ ''.__class__.__mro__ }}{{ ''.__class__.__subclasses__() }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(10000000) %}x{% endfor %}", ""),
    ],
)
def test_a_template_that_raises_is_a_chat_error(source: str, said: str) -> None:
    with pytest.raises(ChatError, match="refuses this conversation") as caught:
        rendered(source, say("hello"))
    assert said in caught.value.message


def test_a_template_that_does_not_compile_stops_the_load(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja.*does not compile"):
        ChatTemplate.from_checkpoint(checkpoint(tmp_path, {"chat_template.jinja": "{% for %}"}))


def test_null_content_is_an_empty_string_and_lists_stay_lists() -> None:
    source = "{% for m in messages %}{{ m.content is string }}{{ m.content | length }},{% endfor %}"
    assert rendered(source, say("a", None, [{"type": "text", "text": ""}])).split(",")[1:3] == ["True0", "False1"]
