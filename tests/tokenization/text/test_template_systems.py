"""Several system messages, and those behind other messages: as the template shows them, else as one and as a user's."""

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from model.families.internvl.processor import template_with
from tests.layouts.templates import QWEN3_VL, QWEN3_VL_THINKING, TEMPLATES, TOOLS
from tests.server.http.routes.wrong_messages import TOOL
from tests.tables import each_of
from tokenization.chat.blocks import chat_from_blocks
from tokenization.chat.dialects import chat_from_openai, with_tools
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Media
from tokenization.chat.system_messages import joined_at_the_head, later_as_users
from tokenization.text.template import ChatTemplate

pytestmark = pytest.mark.network

NAMED = {"bos_token": "<s>", "eos_token": "</s>"}
PICTURE = {"type": "image_url", "image_url": {"url": "data:,"}}
USER, SAID = {"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Here."}
FIRST, SECOND = {"role": "system", "content": "Be brief."}, {"role": "system", "content": "Be <|im_end|> kind."}
LATER = {"role": "system", "content": "The date has changed."}
ONE = {"role": "system", "content": "Be brief.\n\nBe <|im_end|> kind."}
OFFERED: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": TOOL["input_schema"]}}]
# A later one of this line, and others: they say that a system message comes first.
STRICT = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"
)
ALONE = [QWEN3_VL, QWEN3_VL_THINKING, STRICT]  # with a place for one at the head


def shown(source: str, chat: Chat) -> str:
    pieces = ChatTemplate(source, NAMED, "here").render(chat)
    assert not any("<|im_end|> kind" in text for text, by_user in pieces if not by_user)
    return "".join(text for text, _ in pieces)


def theirs(source: str, messages: list[Any], **fields: Any) -> str:
    (text,), _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=True, **NAMED, **fields)
    return str(text)


@each_of("source", ALONE)
def test_those_at_the_head_are_one_in_every_dialect(source: str) -> None:
    expected = theirs(source, [ONE, USER])
    developer = {**SECOND, "role": "developer"}
    for messages in ([FIRST, SECOND, USER], [FIRST, developer, USER], [developer | FIRST, SECOND, USER]):
        assert shown(source, chat_from_openai(messages)) == expected
    parts = {
        "role": "system",
        "content": [{"type": "text", "text": "Be <|im_end|>"}, {"type": "text", "text": " kind."}],
    }
    assert shown(source, chat_from_openai([FIRST, parts, USER])) == expected
    assert shown(source, chat_from_blocks([SECOND, USER], "Be brief.")) == expected
    three = theirs(source, [{"role": "system", "content": ONE["content"] + "\n\n" + LATER["content"]}, USER])
    assert shown(source, chat_from_blocks([SECOND, LATER, USER], "Be brief.")) == three


def test_those_at_the_head_stand_before_the_tools() -> None:
    chat, _ = with_tools(chat_from_openai([FIRST, SECOND, USER]), {"tools": OFFERED})
    assert shown(QWEN3_VL, chat) == theirs(QWEN3_VL, [ONE, USER], tools=OFFERED)


def test_a_later_one_stands_in_its_place_as_a_users() -> None:
    as_user = {**LATER, "role": "user"}
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": {}}}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "c", "content": "dry"}
    for source in (QWEN3_VL, QWEN3_VL_THINKING):
        for before, behind in (([USER], []), ([USER, SAID], [USER]), ([FIRST, USER], [SAID, USER]),
                               ([USER, called, answer], []), ([USER, called], [answer])):  # fmt: skip
            found = shown(source, chat_from_openai([*before, LATER, *behind]))
            assert found == theirs(source, [*before, as_user, *behind])
        both = chat_from_openai([FIRST, SECOND, USER, LATER, SECOND])
        assert shown(source, both) == theirs(source, [ONE, USER, as_user, {**SECOND, "role": "user"}])
    assert shown(STRICT, chat_from_openai([FIRST, USER, LATER])) == theirs(STRICT, [FIRST, USER, as_user])


def test_templates_that_show_them_all_are_given_them_all() -> None:
    alone = {QWEN3_VL, QWEN3_VL_THINKING}
    others = {source for source in (*TEMPLATES.values(), TOOLS, template_with("A system.")) if source not in alone}
    for source in sorted(others):
        as_list = [{**one, "content": [{"type": "text", "text": one["content"]}]} for one in
                   (FIRST, SECOND, USER, SAID, LATER, USER)]  # fmt: skip
        chat = chat_from_openai([FIRST, SECOND, USER, SAID, LATER, USER])
        try:
            expected = theirs(source, [FIRST, SECOND, USER, SAID, LATER, USER])
            expected = expected if "Where" in expected else theirs(source, as_list)
        except TypeError:  # of content that must be a list
            expected = theirs(source, as_list)
        assert shown(source, chat) == expected and "The date" in expected


def test_one_that_no_template_shows_is_refused_as_before() -> None:
    source = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    with pytest.raises(ChatError, match="leaves this text out") as caught:
        shown(source, chat_from_openai([FIRST, SECOND, USER]))
    assert caught.value.param == "messages[0]"


def test_a_picture_of_a_system_message_keeps_its_place_among_them() -> None:
    seen = {"role": "system", "content": [PICTURE, {"type": "text", "text": "See."}]}
    chat = chat_from_openai([FIRST, seen, SECOND, USER, seen])
    head, user, last = joined_at_the_head(chat.turns)
    said = ["image" if isinstance(part, Media) else part.text for part in head.parts]
    assert said == ["Be brief.", "\n\n", "image", "See.", "\n\n", SECOND["content"]] and not head.plain
    assert [turn.role for turn in later_as_users((head, user, last))] == ["system", "user", "user"]
