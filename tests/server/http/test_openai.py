"""POST /v1/chat/completions: what its body may hold, and its answer whole and as chunks."""

import pytest

from server.http.openai import CompletionSerializer, read_openai
from server.requests.refusal import Refusal
from server.requests.sampling import Wishes
from tests.server.http.answers import ACCEPTED, DELTAS, SEVERAL, collected, parse
from tests.server.http.request_bodies import openai, refusal
from tokenization.text.bpe import BPETokenizer


def completion(tokenizer: BPETokenizer, logprobs: bool = False, include_usage: bool = False) -> CompletionSerializer:
    return CompletionSerializer('id"1', 'a "model"', tokenizer, logprobs=logprobs, include_usage=include_usage)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_join_to_the_completion(tokenizer: BPETokenizer, logprobs: bool, include_usage: bool) -> None:
    serializer = completion(tokenizer, logprobs, include_usage)
    whole = serializer.whole(collected(DELTAS))
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
    whole = serializer.whole(collected(SEVERAL))
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
    assert read_openai(openai(max_tokens=3, max_completion_tokens=4)).wishes.max_tokens == 4
    assert read_openai(openai(max_completion_tokens=4)).wishes.max_tokens == 4
    assert read_openai(openai(max_tokens=3, max_completion_tokens=4, min_tokens=4)).wishes.min_tokens == 4
    with pytest.raises(Refusal) as caught:
        read_openai(openai(max_tokens=9, max_completion_tokens=4, min_tokens=5))
    assert caught.value.param == "min_tokens"


def test_a_choice_among_no_tools_can_only_be_none() -> None:
    for choice in (None, "none", "auto"):
        assert read_openai(openai(tool_choice=choice)).wishes == Wishes()
    for refused in ("required", "", 3, {"type": "function", "function": {"name": "f"}}):
        with pytest.raises(Refusal) as caught:
            read_openai(openai(tool_choice=refused))
        assert (caught.value.kind, caught.value.param) == ("invalid_request", "tool_choice")


def test_a_bare_list_is_no_completion() -> None:
    error = refusal(read_openai, b"[]")
    assert (error.kind, error.code) == ("invalid_request", "invalid_json")
    assert error.message == "the body must be a JSON object"
