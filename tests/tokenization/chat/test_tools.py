"""Tool calls in a history and what tools answered: read strictly, since all of it reaches the prompt."""

import json
import math
import time
from typing import Any

import msgspec
import pytest

from tests.tables import each_of
from tokenization.chat.dialects import chat_from_openai
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat, Text, ToolCall, Turn
from tokenization.chat.tools import MAX_CHARACTERS, MAX_DEPTH, MAX_DIGITS, refuse_tools
from tokenization.messages import Prepare


def call(arguments: Any = '{"city": "Oslo"}', name: Any = "weather", **fields: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}, **fields}


def asked(*calls: Any, role: str = "assistant", content: Any = None) -> Chat:
    return chat_from_openai([{"role": role, "content": content, "tool_calls": list(calls)}])


def refused(*calls: Any, **fields: Any) -> ChatError:
    with pytest.raises(ChatError) as caught:
        asked(*calls, **fields)
    return caught.value


def nested(depth: int) -> str:
    return '{"a":' * depth + "1" + "}" * depth


def test_calls_and_answers_are_turns() -> None:
    chat = chat_from_openai(
        [
            {"role": "assistant", "content": "Let me look.", "tool_calls": [call(), call(id=None, index=3)]},
            {"role": "tool", "tool_call_id": "c1", "name": "weather", "content": "rain"},
            {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "tool", "content": None},
        ]
    )
    both = (
        ToolCall(id="c1", name="weather", arguments='{"city": "Oslo"}', size=19, param="messages[0].tool_calls[0]"),
        ToolCall(id=None, name="weather", arguments='{"city": "Oslo"}', size=17, param="messages[0].tool_calls[1]"),
    )
    assert chat.turns == (
        Turn(role="assistant", parts=(Text(text="Let me look."),), plain=True, tool_calls=both, param="messages[0]"),
        Turn(
            role="tool", parts=(Text(text="rain"),), plain=True, name="weather", tool_call_id="c1", param="messages[1]"
        ),
        Turn(role="tool", parts=(Text(text="a\nb"),), plain=True, param="messages[2]"),
        Turn(role="tool", parts=(), plain=True, param="messages[3]"),
    )


@each_of(
    "arguments",
    [None, "", " ", "{}", {}, '{"a": [1, 2.5, null, {"b": "\\u00fc"}]}', {"a": True}, '{"a": 99999999999999999999}',
     {"a": [1 << 64, -(1 << 80), math.inf]}, '{"a": ' + "9" * MAX_DIGITS + "}"],
)  # fmt: skip
def test_arguments_that_are_an_object(arguments: Any) -> None:
    """In the number and the types that Python's own reader gives them; they are the same behind the border."""
    given = json.loads(arguments.strip() or "{}") if isinstance(arguments, str) else arguments or {}
    (turn,) = travelled(asked(call(arguments))).turns
    assert turn.tool_calls[0].is_object and json.loads(turn.tool_calls[0].arguments) == given


@each_of(
    "arguments",
    ["{", '{"city": "Os', "[]", "3", '"x"', "x", "null", '{"a": 1e999}', '{"a": NaN}', '{"a": "\\ud800"}',
     '{"\\ud800": 1}', nested(MAX_DEPTH + 1), nested(100_000), '{"a": ' + "9" * (MAX_DIGITS + 1) + "}"],
)  # fmt: skip
def test_every_other_string_is_taken_as_it_is(arguments: str) -> None:
    """openai's type of it is `str`, of which a client is to check whether it is JSON."""
    (turn,) = travelled(asked(call(arguments))).turns
    assert not turn.tool_calls[0].is_object and turn.tool_calls[0].arguments == arguments
    assert turn.tool_calls[0].size >= len(arguments)


def travelled(chat: Chat) -> Chat:
    """As a worker gets it."""
    sent = msgspec.msgpack.encode(Prepare(request_id="r", chat=chat))
    return msgspec.msgpack.decode(sent, type=Prepare).chat


@each_of("arguments", [[1], 3, True, {"a": "\ud800"}, json.loads(nested(MAX_DEPTH + 1)), "\ud800"])
def test_arguments_that_are_refused(arguments: Any) -> None:
    error = refused(call(arguments))
    assert error.param == "messages[0].tool_calls[0].function.arguments"
    error.message.encode("utf-8")


@each_of(
    ("one", "param"),
    [
        ("x", ""),
        ({}, ".function"),
        (call(type="custom"), ".type"),
        (call(id=3), ".id"),
        (call(name=None), ".function.name"),
        (call(name=" "), ".function.name"),
        ({"function": "weather"}, ".function"),
    ],
)
def test_a_call_that_is_wrong_is_named(one: Any, param: str) -> None:
    assert refused(call(), one).param == f"messages[0].tool_calls[1]{param}"


def test_only_an_assistant_calls() -> None:
    for role in ("user", "system", "tool"):
        assert refused(call(), role=role, content="x").param == "messages[0].tool_calls"
        assert asked(role=role, content="x").turns[0].tool_calls == ()
    with pytest.raises(ChatError) as caught:
        chat_from_openai([{"role": "assistant", "tool_calls": {"a": 1}}])
    assert caught.value.param == "messages[0].tool_calls"


def test_a_template_without_a_place_for_tools_refuses_them_by_field() -> None:
    user = {"role": "user", "content": "x"}
    calls, answer = {"role": "assistant", "tool_calls": [call()]}, {"role": "tool", "content": "x"}
    refuse_tools(chat_from_openai([user]), calls=False, answers=False)
    refuse_tools(chat_from_openai([user, calls, answer]), calls=True, answers=True)
    for messages, kinds, param in (
        ([user, calls, answer], {"calls": False, "answers": True}, "messages[1].tool_calls"),
        ([user, calls, answer], {"calls": True, "answers": False}, "messages[2]"),
    ):
        with pytest.raises(ChatError, match="has no place for") as caught:
            refuse_tools(chat_from_openai(messages), **kinds)
        assert caught.value.param == param


def test_all_that_a_template_may_write_counts_as_characters() -> None:
    """What is in no count is tokenized whole before it is found too long."""
    few = asked(call("{}", "f", id="c"))
    assert few.characters == 1 + 1 + 1
    much = "x" * 1000
    for more in (call({"a": much}, "f"), call({much: 1}, "f"), call({"a": ["b", {"c": much}]}, "f"), call("{}", much)):
        assert 1000 < asked(more).characters < 1020
    assert 1000 < asked(call("{}", "f", id=much)).characters < 1020
    answer = {"role": "tool", "tool_call_id": much, "name": much, "content": much}
    assert chat_from_openai([answer]).characters == 3000
    box = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,abc"}}]}
    assert chat_from_openai([box]).characters == 0


def test_a_long_number_in_arguments_is_not_read() -> None:
    """Fourteen thousand of these held the loop for three seconds."""
    begun = time.process_time()
    longest = '{"a": [' + ", ".join(["9" * 4300] * 900) + "]}"
    (turn,) = asked(call(longest)).turns
    assert time.process_time() - begun < 0.3 and not turn.tool_calls[0].is_object
    digits = '{"a": ' + "9" * MAX_DIGITS + "}"
    assert asked(call(digits)).turns[0].tool_calls[0].size > MAX_DIGITS, "each digit may become a token"


def test_arguments_have_so_many_characters_together() -> None:
    half = '{"a": "' + "x" * (MAX_CHARACTERS // 2 - 9) + '"}'
    assert asked(call(half), call(half)).characters > MAX_CHARACTERS - 100
    error = refused(call(half), call(half), call("{}"))
    assert f"more than {MAX_CHARACTERS} characters" in error.message
    assert error.param == "messages[0].tool_calls[2].function.arguments"
