"""POST /v1/chat/completions: what its body may hold, and its answer whole and as chunks."""

from typing import Any

import pytest

from server.http.openai import CompletionSerializer
from server.requests.refusal import Refusal
from tests.server.http.answers import ACCEPTED, DELTAS, SEVERAL, collected, parse
from tests.server.http.request_bodies import openai, read_openai, refusal
from tokenization.chat.errors import ChatError
from tokenization.chat.parts import Chat
from tokenization.text.bpe import BPETokenizer


def completion(tokenizer: BPETokenizer, logprobs: bool = False, include_usage: bool = False) -> CompletionSerializer:
    return CompletionSerializer('id"1', 'a "model"', tokenizer, logprobs=logprobs, include_usage=include_usage)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_join_to_the_completion(tokenizer: BPETokenizer, logprobs: bool, include_usage: bool) -> None:
    serializer = completion(tokenizer, logprobs, include_usage)
    whole = serializer.whole(ACCEPTED, collected(DELTAS))
    chunks = [parse(event) for event in (serializer.opening(), *map(serializer.event, DELTAS)) if event]
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


def test_several_answers_as_choices(tokenizer: BPETokenizer) -> None:
    serializer = CompletionSerializer("i", "m", tokenizer, logprobs=True, include_usage=True, n=2)
    whole = serializer.whole(ACCEPTED, collected(SEVERAL))
    assert [(c["index"], c["message"]["content"], c["finish_reason"]) for c in whole["choices"]] == [
        (0, "ab", "length"), (1, "x", "stop"),
    ]  # fmt: skip
    assert [len(c["logprobs"]["content"]) for c in whole["choices"]] == [2, 2]
    assert whole["usage"]["completion_tokens"] == 4
    opening = [parse(event + b"\n\n") for event in serializer.opening().split(b"\n\n") if event]
    assert [chunk["choices"][0]["index"] for chunk in opening] == [0, 1]
    assert all(chunk["choices"][0]["delta"]["role"] == "assistant" for chunk in opening)
    chunks = [parse(serializer.event(delta))["choices"][0] for delta in SEVERAL]
    assert [(c["index"], c["finish_reason"]) for c in chunks] == [(1, None), (0, None), (1, "stop"), (0, "length")]


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


@pytest.mark.parametrize("value", [0, -1, 1.5, "4", True, 1 << 31])
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


def test_bad_options_of_a_stream_are_named() -> None:
    for options, param in (
        ({"include_usage": 1}, "stream_options.include_usage"),
        ({"include_usage": "yes"}, "stream_options.include_usage"),
        ([], "stream_options"),
        (True, "stream_options"),
    ):
        assert refusal(read_openai, openai(stream_options=options)).param == param


@pytest.mark.parametrize(
    ("name", "values"), [("stream", [1, "true", []]), ("model", [3, []]), ("messages", [None, "Hi", {}, 3])]
)
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
    choice = completion(tokenizer).whole(ACCEPTED, collected(DELTAS))["choices"][0]
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
    assert (last["id"], last["model"], last["object"]) == ('id"1', 'a "model"', "chat.completion.chunk")
    assert parse(serializer.event(DELTAS[0]))["usage"] is None, "every other chunk says that it has none"
