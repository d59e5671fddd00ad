"""A chat as exchanges; every other order is refused in tests/parity/test_qwen_vl_host.py."""

import pytest

from model.families.qwen_vl.chatml import rounds_of, text_of
from tokenization.chat.dialects import chat_from_openai

pytestmark = pytest.mark.network


def test_answers_stand_behind_their_questions() -> None:
    roles = ["system", "user", "user", "assistant", "user"]
    chat = chat_from_openai([{"role": role, "content": f"{i}"} for i, role in enumerate(roles)])
    system, found = rounds_of(chat)
    assert system is not None and text_of(system) == "0"
    assert [(text_of(question), answer and text_of(answer)) for question, answer in found] == [
        ("1", None), ("2", "3"), ("4", None),
    ]  # fmt: skip


def test_system_messages_at_the_head_are_one_and_a_later_one_is_a_users() -> None:
    roles = ["system", "system", "user", "assistant", "system", "user"]
    chat = chat_from_openai([{"role": role, "content": f"{i}"} for i, role in enumerate(roles)])
    system, found = rounds_of(chat)
    assert system is not None and text_of(system) == "0\n\n1"
    assert [(text_of(question), answer and text_of(answer)) for question, answer in found] == [
        ("2", "3"), ("4", None), ("5", None),
    ]  # fmt: skip


def test_texts_are_joined_and_an_empty_answer_is_one() -> None:
    parts = [{"type": "text", "text": text} for text in ("a", "b")]
    chat = chat_from_openai(
        [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None},
            {"role": "user", "content": "c"},
        ]
    )
    system, found = rounds_of(chat)
    assert system is None and text_of(found[0][0]) == "ab"
    assert found[0][1] is not None and text_of(found[0][1]) == ""
