"""Both dialects as bytes: every chunk is the JSON it stands for, and joins to the whole answer."""

import asyncio
import json
from typing import Any

import pytest

from model.engine.messages import Token
from server.http.native import NativeSerializer
from server.http.openai import CompletionSerializer
from server.http.responses import CollectingSink, Serializer
from server.requests.answer import Accepted, Delta
from tokenization.text.bpe import BPETokenizer

TOKENS = (
    Token(id=65, logprob=-0.5, top=((65, -0.5), (66, -1.0))),
    Token(id=151, logprob=-2.0),
    Token(id=9999, logprob=-3.0),
)
ACCEPTED = Accepted(prompt_tokens=10, media_tokens=4)
DELTAS = [
    Delta(text='a "quote"\n', tokens=TOKENS[:1]),
    Delta(text="", tokens=TOKENS[1:2]),
    Delta(text="\u2028你", tokens=TOKENS[2:], finish="stop"),
]


def parse(event: bytes) -> Any:
    assert event.startswith(b"data: ") and event.endswith(b"\n\n") and event.count(b"\n") == 2
    return json.loads(event[6:])


def collected() -> CollectingSink:
    async def fill() -> CollectingSink:
        answer = CollectingSink()
        await answer.accept(ACCEPTED)
        for delta in DELTAS:
            await answer.write(delta)
        return answer

    return asyncio.run(fill())


def completion(tokenizer: BPETokenizer, logprobs: bool = False, include_usage: bool = False) -> CompletionSerializer:
    return CompletionSerializer('id"1', 'a "model"', tokenizer, logprobs=logprobs, include_usage=include_usage)


@pytest.mark.parametrize("logprobs", [False, True])
@pytest.mark.parametrize("include_usage", [False, True])
def test_chunks_join_to_the_completion(tokenizer: BPETokenizer, logprobs: bool, include_usage: bool) -> None:
    serializer = completion(tokenizer, logprobs, include_usage)
    whole = serializer.whole(collected())
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


def test_usage_and_entries(tokenizer: BPETokenizer) -> None:
    whole = completion(tokenizer, logprobs=True).whole(collected())
    assert whole["usage"]["prompt_tokens"] == 10 and whole["usage"]["completion_tokens"] == 3
    assert whole["usage"]["total_tokens"] == 13 and whole["usage"]["prompt_tokens_details"] == {"image_tokens": 4}
    first, part, unknown = whole["choices"][0]["logprobs"]["content"]
    spelled = tokenizer.token_bytes(65)
    assert first["token"] == spelled.decode() and first["bytes"] == list(spelled) and len(first["top_logprobs"]) == 2
    assert part["bytes"] == list(tokenizer.token_bytes(151))
    assert unknown == {"token": "", "logprob": -3.0, "bytes": [], "top_logprobs": []}


@pytest.mark.parametrize("logprobs", [False, True])
def test_native_events_join_to_the_answer(tokenizer: BPETokenizer, logprobs: bool) -> None:
    serializer: Serializer = NativeSerializer("chat-1", tokenizer, logprobs=logprobs)
    whole = serializer.whole(collected())
    events = [
        parse(event)
        for event in (serializer.opening(), *map(serializer.event, DELTAS), serializer.closing(ACCEPTED, 3))
        if event
    ]
    assert "".join(event["text"] for event in events) == whole["text"]
    assert [event["finish_reason"] for event in events] == [None] * (len(events) - 1) + ["stop"]
    assert events[-1]["usage"] == whole["usage"] and ("logprobs" in whole) == logprobs
    if logprobs:
        entries = [entry for event in events for entry in event.get("logprobs", {"content": []})["content"]]
        assert entries == whole["logprobs"]["content"] and len(entries) == 3


SEVERAL = [
    Delta(index=1, text="x", tokens=TOKENS[:1]),
    Delta(index=0, text="a", tokens=TOKENS[1:2]),
    Delta(index=1, text="", tokens=TOKENS[1:2], finish="stop"),
    Delta(index=0, text="b", tokens=TOKENS[2:], finish="length"),
]


def several() -> CollectingSink:
    async def fill() -> CollectingSink:
        answer = CollectingSink()
        await answer.accept(ACCEPTED)
        for delta in SEVERAL:
            await answer.write(delta)
        return answer

    return asyncio.run(fill())


def test_several_answers_as_choices(tokenizer: BPETokenizer) -> None:
    serializer = CompletionSerializer("i", "m", tokenizer, logprobs=True, include_usage=True, n=2)
    whole = serializer.whole(several())
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


@pytest.mark.parametrize("logprobs", [False, True])
def test_several_answers_natively(tokenizer: BPETokenizer, logprobs: bool) -> None:
    serializer = NativeSerializer("chat-1", tokenizer, logprobs=logprobs, n=2)
    whole = serializer.whole(several())
    assert "text" not in whole and whole["usage"]["completion_tokens"] == 4
    assert [(a["index"], a["text"], a["finish_reason"]) for a in whole["answers"]] == [
        (0, "ab", "length"),
        (1, "x", "stop"),
    ]
    assert all(("logprobs" in a) == logprobs for a in whole["answers"])
    opening = [parse(event + b"\n\n") for event in serializer.opening().split(b"\n\n") if event]
    assert opening == [{"id": "chat-1", "text": "", "finish_reason": None, "index": i} for i in range(2)]
    events = [parse(serializer.event(delta)) for delta in SEVERAL]
    assert [(e["index"], e["text"], e["finish_reason"]) for e in events] == [
        (1, "x", None), (0, "a", None), (1, "", "stop"), (0, "b", "length"),
    ]  # fmt: skip
    last = parse(serializer.closing(ACCEPTED, 4))
    assert (last["text"], last["finish_reason"], last["usage"]) == ("", None, whole["usage"])
