"""POST /chat: what its body may hold, and its answer whole and as events."""

import pytest

from server.http.native import NativeSerializer
from server.http.responses import Serializer
from tests.server.http.answers import ACCEPTED, DELTAS, SEVERAL, collected, parse
from tokenization.text.bpe import BPETokenizer


@pytest.mark.parametrize("logprobs", [False, True])
def test_native_events_join_to_the_answer(tokenizer: BPETokenizer, logprobs: bool) -> None:
    serializer: Serializer = NativeSerializer("chat-1", tokenizer, logprobs=logprobs)
    whole = serializer.whole(collected(DELTAS))
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


@pytest.mark.parametrize("logprobs", [False, True])
def test_several_answers_natively(tokenizer: BPETokenizer, logprobs: bool) -> None:
    serializer = NativeSerializer("chat-1", tokenizer, logprobs=logprobs, n=2)
    whole = serializer.whole(collected(SEVERAL))
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
