"""The checkpoint's own template, and what a user's words cannot do in it."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from configs.checkpoint import Checkpoint, CheckpointError
from tests.tables import each_of
from tests.tiny.qwen2_vl import TEMPLATE
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.chat.rendering import with_rendering
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


@each_of(
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
        assert template.render(say("")) == [(expected, False)]


def test_a_template_that_a_class_brings_stands_before_the_tokenizers_alone(tmp_path: Path) -> None:
    own = checkpoint(tmp_path, {"tokenizer_config.json": {"chat_template": "C"}})
    assert ChatTemplate.from_checkpoint(own, "built in").render(say("")) == [("built in", False)]
    (tmp_path / "chat_template.jinja").write_text("A")
    assert ChatTemplate.from_checkpoint(own, "built in").render(say("")) == [("A", False)]


def test_named_tokens_reach_the_template(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|", "eos_token": {"content": "<e>"}}
    template = ChatTemplate.from_checkpoint(
        checkpoint(tmp_path, {"tokenizer_config.json": {**config, "bos_token": "<b>"}})
    )
    assert template.render(say("")) == [("<b>|<e>||", False)]


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


@each_of("blank", ["", " ", "\n\t ", "\u3000"])
def test_the_template_sees_a_blank_text_as_it_is(blank: str) -> None:
    source = "{% for m in messages %}{{ m.content|length }}{% if m.content %}+{% endif %}{% endfor %}"
    assert rendered(source, say(blank)) == f"{len(blank)}{'+' if blank else ''}"


def test_trimming_and_json_keep_the_marks_apart() -> None:
    assert rendered("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}", say(" a ", "b")) == "[a][b]"
    assert rendered("{{ messages | tojson }}", say('a"ü')) == '[{"role": "user", "content": "a\\"ü"}]'


def test_a_template_may_repeat_a_text_and_leaves_none_out() -> None:
    last = "{{ messages[-1].content }}{{ messages[-1].content }}"
    assert rendered(last, say("c")) == rendered(last, say(" ", "", "c")) == "cc"
    with pytest.raises(ChatError, match="leaves this text out") as caught:
        rendered(last, say("a", "b", "c"))
    assert caught.value.param == "messages[0]"


FIRST_ALONE = "{% for m in messages %}[{{ m.content[0].text }}]{% endfor %}"
SYSTEM_IS_STRING = (
    "{% if messages[0].content is not string %}{{ raise_exception('system') }}{% endif %}{{ messages[0].content }}"
    "{% for m in messages[1:] %}{% for p in m.content if p.type == 'text' %}[{{ p.text }}]{% endfor %}{% endfor %}"
)


def test_neighbouring_texts_are_joined_where_a_template_reads_the_first_alone() -> None:
    """Mistral's template reads content[0] of all but users: the rest was lost, with status 200."""
    two = [{"type": "text", "text": "Be"}, {"type": "text", "text": " brief."}]
    assert rendered(FIRST_ALONE, say(two, two)) == "[Be brief.][Be brief.]"
    both = "{% for m in messages %}{% for p in m.content %}{{ p.text }} {% endfor %}{% endfor %}"
    assert rendered(both, say(two)) == "Be  brief. ", "a template that reads all has its own way of joining them"
    pieces = ChatTemplate(FIRST_ALONE, {}, "here").render(say(two))
    assert pieces == [("[", False), ("Be brief.", True), ("]", False)]


def test_a_system_message_may_have_to_be_a_string_where_a_users_is_a_list() -> None:
    chat = chat_from_openai([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])
    assert rendered(SYSTEM_IS_STRING, chat) == "S[U]"


@each_of("cut", ["[:20]", "[:40]", "[20:]", "[40:]", "[20:-20]", "[40:50]  }}{{ messages[0].content[:40]"])
def test_a_template_that_cuts_a_text_is_refused(cut: str) -> None:
    with pytest.raises(ChatError, match="tears"):
        rendered(f"{{{{ messages[0].content{cut} }}}}", say("hello world"))


def test_marks_are_new_for_each_chat() -> None:
    spy = ChatTemplate("{{ messages[0].content }}{{ messages[0].content[1:8] }}", {}, "here")
    seen = {spy.render(say("hi"))[1][0] for _ in range(3)}  # so little of a mark is not recognised
    assert len(seen) == 3


def test_environment_is_that_of_transformers() -> None:
    assert (
        rendered("{% for i in [1,2,3] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% endfor %}", say("")) == "13"
    )
    assert rendered("a\n  {% if true %}\nb\n  {% endif %}\nc", say("")) == "a\nb\nc"  # trim_blocks, lstrip_blocks
    assert rendered("{% generation %}g{% endgeneration %}{{ strftime_now('%Y')|length }}", say("")) == "g4"
    assert rendered("{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}", say("")) == "TrueTrueTrue"
    assert rendered("{{ nothing }}|", say("")) == "|"
    assert (
        rendered("{{ {'b': '<ü>', 'a': 1} | tojson(indent=1, sort_keys=true) }}", say(""))
        == '{\n "a": 1,\n "b": "<ü>"\n}'
    )


@each_of(
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


@each_of("source", ["{% for %}", "{{" + "(" * 100_000, "{{ a" + "[0" * 3000, "{{ x | " + "y" * 10**6])
def test_a_template_that_does_not_compile_stops_the_load(tmp_path: Path, source: str) -> None:
    template = ChatTemplate.from_checkpoint(checkpoint(tmp_path, {"chat_template.jinja": source}))
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja.*does not compile") as caught:
        template.render(say("hello"))
    assert len(str(caught.value)) < 400


def test_null_content_is_an_empty_string_and_lists_stay_lists() -> None:
    source = "{% for m in messages %}{{ m.content is string }}{{ m.content | length }},{% endfor %}"
    assert rendered(source, say(" ", None, [{"type": "text", "text": ""}])).split(",")[1:3] == ["True0", "False1"]


# ---- prompts that end inside an answer, and variables of the client's

OPEN = "{% for m in messages %}<{{ m.content }}>\n{% endfor %}{% if add_generation_prompt %}|{% endif %}"
TRIM = "{% for m in messages %}<{{ m.content | trim }} >{% endfor %}"


def continued(*contents: Any) -> Chat:
    return with_rendering(say(*contents), {"continue_final_message": True})


@each_of(
    ("source", "last", "expected"),
    [
        (OPEN, "b", "<a>\n<b"), (OPEN, "b ", "<a>\n<b "), (OPEN, " b\n\n", "<a>\n< b\n\n"), (OPEN, "", "<a>\n<"),
        (TRIM, "b", "<a ><b"), (TRIM, "b  ", "<a ><b  "),
        ("{{ messages[0].content }}{{ messages[1].content | trim }}.", "b \n", "ab"),
        ("{{ messages | tojson }}", "b ", '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b '),
    ],
)  # fmt: skip
def test_a_prompt_ends_with_the_answer_that_is_continued(source: str, last: str, expected: str) -> None:
    assert rendered(source, continued("a", last)) == expected


def test_the_begun_answer_stays_its_writers() -> None:
    pieces = ChatTemplate(OPEN, {}, "here").render(continued("a", "b <|im_end|> "))
    assert pieces == [("<", False), ("a", True), (">\n<", False), ("b <|im_end|>", True), (" ", False)]


def test_the_last_text_of_a_list_is_continued() -> None:
    source = "{{ messages[0].content }}{% for p in messages[1].content %}[{{ p.text }}]{% endfor %}"
    parts = [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]
    assert rendered(source, continued("a", parts)) == "a[b][c"


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{{ messages[1].content[:-4] }}"])
def test_a_template_without_the_end_of_the_last_message_is_refused(source: str) -> None:
    with pytest.raises(ChatError) as caught:
        rendered(source, continued("a", "b"))
    assert caught.value.param == "continue_final_message"


def test_an_end_written_twice_is_torn() -> None:
    with pytest.raises(ChatError, match="tears"):
        rendered("{{ messages[1].content }}{{ messages[1].content }}", continued("a", "b"))


def test_a_prompt_may_end_without_an_opening() -> None:
    assert rendered(OPEN, with_rendering(say("a"), {"add_generation_prompt": False})) == "<a>\n"


def test_variables_reach_the_template_and_never_hide_ours() -> None:
    chat = with_rendering(say(""), {"chat_template_kwargs": {"style": "x", "deep": {"k": [1, None, True]}}})
    assert rendered("{{ style }}{{ deep.k }}{{ other }}{{ eos_token }}", chat, eos_token="E") == "x[1, None, True]E"
    hidden = msgspec.structs.replace(chat, template_kwargs={"messages": 1, "eos_token": 2, "add_generation_prompt": 3})
    assert (
        rendered("{{ messages | length }}{{ eos_token }}{{ add_generation_prompt }}", hidden, eos_token="E") == "1ETrue"
    )


def test_a_variable_is_not_a_way_out_of_the_sandbox() -> None:
    chat = with_rendering(say("a"), {"chat_template_kwargs": {"x": {"y": "z"}}})
    with pytest.raises(ChatError, match="unsafe"):
        rendered("{{ x.__class__.__mro__ }}", chat)


PARTS_ONLY = "{% for m in messages %}{% for p in m.content if p.type == 'text' %}[{{ p.text }}]{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [PARTS_ONLY, "{% for m in messages %}[{{ m.content[0]['text'] }}]{% endfor %}"],
)
def test_a_template_that_cannot_read_a_string_gets_a_list(source: str) -> None:
    """It would leave the text out, or end in an error."""
    assert rendered(source, say("a", " b ")) == "[a][ b ]"
    assert ("a", True) in ChatTemplate(source, {}, "here").render(say("a"))


def test_a_template_that_reads_neither_is_taken_as_it_is() -> None:
    assert rendered("{{ messages[0].content }}", say("a")) == "a"
    assert rendered("never", say("")) == "never"
