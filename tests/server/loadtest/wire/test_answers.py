"""What the events of several servers mean: when content begins, how an answer ends, what was counted."""

import json
from typing import Any

import pytest

from server.loadtest.wire.answers import Reading, Unreadable, read_piece


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> bytes:
    return json.dumps({"id": "x", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}).encode()


USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
ROLE = {"role": "assistant", "content": ""}
DIALECTS: dict[str, list[bytes]] = {
    "vLLM": [
        chunk(ROLE), chunk({"content": "a"}), chunk({"content": "b"}), chunk({"content": ""}, "stop"),
        json.dumps({"choices": [], "usage": USAGE}).encode(),
    ],
    "OpenAI": [
        chunk({**ROLE, "refusal": None}, usage=None), chunk({"content": "a"}, usage=None),
        chunk({"content": "b"}, usage=None), chunk({}, "stop", usage=None),
        json.dumps({"choices": [], "usage": {**USAGE, "completion_tokens_details": {"reasoning_tokens": 0}}}).encode(),
    ],
    "llama.cpp": [
        chunk({"role": "assistant", "content": None}), chunk({"content": "a"}), chunk({"content": "b"}),
        chunk({}, "stop", usage=USAGE, timings={"predicted_ms": 1.5}),
    ],
    "usage in every chunk": [
        chunk(ROLE, usage={**USAGE, "completion_tokens": 0}),
        chunk({"content": "a"}, usage={**USAGE, "completion_tokens": 1}),
        chunk({"content": "b"}, "stop", usage=USAGE),
    ],
    "native": [
        b'{"id":"chat-1","text":"","finish_reason":null}', b'{"id":"chat-1","text":"a","finish_reason":null}',
        b'{"id":"chat-1","text":"b","finish_reason":null}',
        json.dumps({"id": "chat-1", "text": "", "finish_reason": "stop", "usage": USAGE, "boxes": []}).encode(),
    ],
    "completions": [
        b'{"choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}',
        b'{"choices":[{"index":0,"text":"b","finish_reason":"stop"}]}',
        json.dumps({"choices": [], "usage": USAGE}).encode(),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_says_the_same(name: str) -> None:
    events = DIALECTS[name]
    reading = Reading()
    contents = [at for at, event in enumerate(events) if read_piece(event).content]
    for at, event in enumerate([*events, b"[DONE]"]):
        reading.take(event, float(at))
    assert "".join(reading.texts) == "ab"
    assert reading.events == 2
    assert reading.first == contents[0], "the first event that carries content, whatever came before"
    assert reading.gaps == [1.0]
    assert reading.finish == "stop" and reading.done
    finish = next(at for at, event in enumerate(events) if read_piece(event).finish)
    assert reading.last == finish, "usage and [DONE] are no part of the answer"
    assert reading.usage is not None
    assert (reading.usage.prompt_tokens, reading.usage.completion_tokens) == (5, 3)


@pytest.mark.parametrize("delta", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}])
def test_thoughts_and_calls_of_tools_are_content(delta: dict[str, Any]) -> None:
    piece = read_piece(chunk(delta))
    assert piece.content and piece.text == ""


@pytest.mark.parametrize("delta", [ROLE, {"role": "assistant"}, {}, {"content": None}, {"tool_calls": []}])
def test_a_role_alone_is_no_content(delta: dict[str, Any]) -> None:
    assert not read_piece(chunk(delta)).content


def test_an_answer_in_one_piece_is_read_too() -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}], "usage": USAGE}
    piece = read_piece(json.dumps(body).encode())
    assert (piece.text, piece.finish, piece.content) == ("ab", "stop", True)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ({"message": "no", "code": "queue_full", "type": "t"}, "queue_full"),
        ({"message": "no", "code": None, "type": "BadRequestError"}, "BadRequestError"),
        ({"message": "no"}, "no"),
        ("Unauthorized", "Unauthorized"),
        ({"code": 400}, "400"),
    ],
)
def test_errors_have_short_names(error: Any, code: str) -> None:
    assert read_piece(json.dumps({"error": error}).encode()).error == code


@pytest.mark.parametrize(
    "data", [b"", b"{", b"<html>", b"[]", b'{"choices": 3}', b'{"choices":[{"delta":{"content":[1]}}]}']
)
def test_what_is_none_of_it_is_said(data: bytes) -> None:
    with pytest.raises(Unreadable, match="unreadable answer"):
        read_piece(data)


def test_seconds_of_stages_come_with_usage() -> None:
    piece = read_piece(json.dumps({"choices": [], "usage": {**USAGE, "timings": {"queue": 0.25}}}).encode())
    assert piece.usage is not None and piece.usage.timings == {"queue": 0.25}
