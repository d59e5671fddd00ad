"""POST /v1/chat/completions: what its body may hold, and its answer whole and as chunks."""

from typing import Any

import pytest

from server.requests.answer import Delta
from server.requests.refusal import Refusal
from tests.server.http.answers import (
    ACCEPTED,
    DELTAS,
    SEVERAL,
    TOKENS,
    answered,
    collected,
    completion,
    parse,
    parse_all,
)
from tests.server.http.request_bodies import openai, read_openai, refusal
from tests.server.tables import each_of
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.text.bpe import BPETokenizer


@each_of("logprobs", [False, True])
@each_of("include_usage", [False, True])
def test_chunks_join_to_the_completion(tokenizer: BPETokenizer, logprobs: bool, include_usage: bool) -> None:
    serializer = completion(tokenizer, logprobs=logprobs, include_usage=include_usage)
    whole = answered(serializer, ACCEPTED, collected(DELTAS))
    chunks = parse_all(serializer.event(ACCEPTED, delta) for delta in DELTAS)
    for chunk in chunks:
        assert chunk["object"] == "chat.completion.chunk"
        assert (chunk["id"], chunk["model"], chunk["created"]) == (whole["id"], whole["model"], whole["created"])
        assert ("usage" in chunk) == include_usage
    choices = [chunk["choices"][0] for chunk in chunks]
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    choice = whole["choices"][0]
    assert "".join(c["delta"].get("content", "") for c in choices) == choice["message"]["content"]
    assert choices[-1]["finish_reason"] == choice["finish_reason"] == "stop"
    entries = [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]
    assert entries == (choice["logprobs"]["content"] if logprobs else [])
    assert len(chunks) == (4 if logprobs else 3), "a delta without text is an event only where it has an entry"
    closing = serializer.closing(ACCEPTED, 3)
    assert (
        (parse(closing)["usage"] == whole["usage"] and parse(closing)["choices"] == [])
        if include_usage
        else not closing
    )


def test_a_role_comes_with_the_first_delta_of_its_answer_text_or_not(tokenizer: BPETokenizer) -> None:
    """The first token's time is the first chunk's, also where its text is held back."""
    serializer = completion(tokenizer, n=2)
    held_back = Delta(index=1, text="", tokens=TOKENS[:1])
    chunks = [parse_all([serializer.event(ACCEPTED, delta)]) for delta in (held_back, *SEVERAL)]
    said = [[(c["choices"][0]["index"], c["choices"][0]["delta"]) for c in some] for some in chunks]
    role = {"role": "assistant", "content": ""}
    assert said == [
        [(1, role)], [(1, {"content": "x"})], [(0, role), (0, {"content": "a"})], [(1, {})], [(0, {"content": "b"})],
    ]  # fmt: skip


def test_an_echo_stands_in_front_of_each_answer(tokenizer: BPETokenizer) -> None:
    serializer = completion(tokenizer, n=2, lead="Once ")
    whole = answered(serializer, ACCEPTED, collected(SEVERAL))
    chunks = [chunk["choices"][0] for chunk in parse_all(serializer.event(ACCEPTED, delta) for delta in SEVERAL)]
    for index, text in enumerate(("Once ab", "Once x")):
        assert whole["choices"][index]["message"]["content"] == text
        assert "".join(c["delta"].get("content", "") for c in chunks if c["index"] == index) == text
    assert whole["usage"]["completion_tokens"] == 4


def test_what_is_echoed_is_the_last_message_of_the_assistant() -> None:
    """As in vLLM, the texts of its parts become lines."""
    texts = [{"type": "text", "text": "An apple"}, {"type": "text", "text": "a day"}]
    said = {"role": "assistant", "content": texts}
    asked = {"role": "user", "content": "Go on"}
    for messages, lead in (([asked, said], "An apple\na day"), ([said, asked], "")):
        assert read_openai(openai(messages=messages, echo=True)).lead == lead
        assert read_openai(openai(messages=messages)).lead == ""


def test_several_answers_as_choices(tokenizer: BPETokenizer) -> None:
    serializer = completion(tokenizer, n=2, logprobs=True, include_usage=True)
    whole = answered(serializer, ACCEPTED, collected(SEVERAL))
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, "ab", "length"), (1, "x", "stop"),
    ]  # fmt: skip
    assert [len(c["logprobs"]["content"]) for c in whole["choices"]] == [2, 2]
    assert whole["usage"]["completion_tokens"] == 4
    chunks = [chunk["choices"][0] for chunk in parse_all(serializer.event(ACCEPTED, delta) for delta in SEVERAL)]
    assert [(c["index"], c["delta"].get("role"), c["finish_reason"]) for c in chunks] == [
        (1, "assistant", None), (1, None, None), (0, "assistant", None), (0, None, None),
        (1, None, "stop"), (0, None, "length"),
    ]  # fmt: skip


def test_usage_up_to_each_chunk_is_that_of_its_answer(tokenizer: BPETokenizer) -> None:
    serializer = completion(tokenizer, n=2, include_usage=True, usage_so_far=True)
    chunks = parse_all(serializer.event(ACCEPTED, delta) for delta in SEVERAL)
    assert [(c["choices"][0]["index"], c["usage"]["completion_tokens"]) for c in chunks] == [
        (1, 0), (1, 1), (0, 0), (0, 1), (1, 2), (0, 2),
    ]  # fmt: skip
    assert all(c["usage"]["total_tokens"] == 10 + c["usage"]["completion_tokens"] for c in chunks)
    assert parse(serializer.closing(ACCEPTED, 4))["usage"]["completion_tokens"] == 4


@each_of("n", [1, 2])
def test_ids_of_prompt_and_answer(tokenizer: BPETokenizer, n: int) -> None:
    """A delta without text has a chunk all the same, or its ids would be lost."""
    serializer = completion(tokenizer, n=n, token_ids=True)
    deltas = DELTAS if n == 1 else SEVERAL
    whole = answered(serializer, ACCEPTED, collected(deltas))
    assert whole["prompt_token_ids"] == [9, 9, 9, 3, 4, 5, 6, 7, 8, 9]
    chunks = parse_all(serializer.event(ACCEPTED, delta) for delta in deltas)
    assert [chunk.get("prompt_token_ids") for chunk in chunks] == [whole["prompt_token_ids"]] + [None] * (
        len(chunks) - 1
    )
    for choice in whole["choices"]:
        own = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == choice["index"]]
        assert [i for c in own for i in c.get("token_ids", [])] == choice["token_ids"]
        assert len(choice["token_ids"]) == (3 if n == 1 else 2)
    assert "token_ids" not in answered(completion(tokenizer), ACCEPTED, collected(DELTAS))["choices"][0]


def test_a_body_that_says_nothing_wants_no_stream() -> None:
    assert not read_openai(openai()).stream and not read_openai(openai()).include_usage


def test_the_newer_name_of_max_tokens_wins() -> None:
    assert read_openai(openai(max_tokens=3, max_completion_tokens=4)).sampling.max_tokens == 4
    assert read_openai(openai(max_completion_tokens=4)).sampling.max_tokens == 4
    assert read_openai(openai(max_tokens=3, max_completion_tokens=4, min_tokens=4)).sampling.min_tokens == 4
    with pytest.raises(Refusal) as caught:
        read_openai(openai(max_tokens=9, max_completion_tokens=4, min_tokens=5))
    assert caught.value.param == "min_tokens"


def test_a_bare_list_is_no_completion() -> None:
    error = refusal(read_openai, b"[]")
    assert (error.kind, error.code) == ("invalid_request", "invalid_json")
    assert error.message == "the body must be a JSON object"


@each_of("value", [0, -1, 1.5, "4", True, 1 << 31])
def test_a_bad_length_is_refused_under_the_name_that_was_used(value: Any) -> None:
    assert refusal(read_openai, openai(max_completion_tokens=value)).param == "max_completion_tokens"
    assert refusal(read_openai, openai(max_tokens=value, max_completion_tokens=4)).param == "max_tokens"


def test_unknown_fields_are_ignored() -> None:
    others = {"user": "me", "metadata": {"a": [1]}, "store": True, "temprature": 3, "draw_boxes": True}
    assert read_openai(openai(**others)) == read_openai(openai())


def test_usage_in_a_stream_is_asked_for_in_its_options() -> None:
    for options, wanted in (
        ({"include_usage": True}, True),
        ({"include_usage": True, "include_obfuscation": False}, True),
        ({"include_usage": False}, False),
        ({"include_usage": None}, False),
        ({}, False),
        (None, False),
    ):
        body = read_openai(openai(stream=True, stream_options=options))
        assert body.stream and body.include_usage is wanted


def test_options_of_a_stream_need_a_stream() -> None:
    for options in ({"include_usage": True}, {"include_usage": False}, {"else": 1}):
        for stream in ({}, {"stream": False}, {"stream": None}):
            error = refusal(read_openai, openai(stream_options=options, **stream))
            assert (error.param, error.message) == ("stream_options", "stream_options: they need stream: true")
    assert read_openai(openai(stream_options=None)) == read_openai(openai(stream_options={})) == read_openai(openai())


def test_usage_in_each_chunk_is_asked_for_beside_usage() -> None:
    for usage, each, wanted in ((True, True, True), (True, False, False), (False, True, False), (None, True, False)):
        options = {"include_usage": usage, "continuous_usage_stats": each}
        assert read_openai(openai(stream=True, stream_options=options)).usage_so_far is wanted


def test_ids_are_asked_for() -> None:
    asked = read_openai(openai(return_token_ids=True, return_tokens_as_token_ids=True))
    assert asked.token_ids and asked.tokens_as_ids
    silent = read_openai(openai(return_token_ids=None, return_tokens_as_token_ids=False))
    assert silent == read_openai(openai()) and not silent.token_ids


def test_bad_options_of_a_stream_are_named() -> None:
    for options, param in (
        ({"include_usage": 1}, "stream_options.include_usage"),
        ({"include_usage": "yes"}, "stream_options.include_usage"),
        ([], "stream_options"),
        (True, "stream_options"),
    ):
        assert refusal(read_openai, openai(stream_options=options)).param == param


@each_of(("name", "values"), [("stream", [1, "true", []]), ("model", [3, []]), ("messages", [None, "Hi", {}, 3])])
def test_a_field_of_another_type_is_named(name: str, values: list[Any]) -> None:
    for value in values:
        error = refusal(read_openai, openai(**{name: value}))
        assert (error.kind, error.param) == ("invalid_request", name)


def test_messages_must_be_there() -> None:
    assert refusal(read_openai, b"{}").param == "messages"


def test_what_is_wrong_inside_a_message_is_named() -> None:
    for messages, param in (([], "messages"), ([{"role": "robot", "content": "Hi"}], "messages[0].role")):
        with pytest.raises(ChatError) as caught:
            read_openai(openai(messages=messages))
        assert caught.value.param == param


def test_a_completion_is_read_whole() -> None:
    body = read_openai(openai(model="tiny", stream=True))
    assert (body.model, body.stream, body.chat_param, body.grounding) == ("tiny", True, "messages", "none")
    assert read_openai(openai()).model is None
    assert isinstance(body.chat, Chat) and len(body.chat.turns) == 1


def test_a_completion_without_logprobs_says_so(tokenizer: BPETokenizer) -> None:
    choice = answered(completion(tokenizer), ACCEPTED, collected(DELTAS))["choices"][0]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": 'a "quote"\n\u2028你', "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }


def test_the_usage_of_a_stream_is_a_chunk_without_choices(tokenizer: BPETokenizer) -> None:
    serializer = completion(tokenizer, include_usage=True)
    last = parse(serializer.closing(ACCEPTED, 3))
    assert set(last) == {"id", "created", "model", "system_fingerprint", "object", "choices", "usage"}
    assert (last["id"], last["model"], last["object"]) == ('chatcmpl-"1', 'a "model"', "chat.completion.chunk")
    chunks = parse_all([serializer.event(ACCEPTED, DELTAS[0])])
    assert [chunk["usage"] for chunk in chunks] == [None, None], "every other chunk says that it has none"
