"""One request to an endpoint with fixed delays, and what the events of several servers mean in whatever pieces."""

import asyncio
import json
from dataclasses import replace
from time import perf_counter
from typing import Any

import pytest

from server.loadtest.options import read_options
from server.loadtest.results.measures import Record
from server.loadtest.traffic.requests import SampleRequest
from server.loadtest.wire.connection import ConnectionPool
from server.loadtest.wire.exchange import AnswerReader, Client, Events
from tests.server.loadtest.fixed_delays import Delays, running
from tests.server.tables import each_of

ASK = SampleRequest(3, "text", "2 words", "one two", (), 4)


def sent(delays: Delays, request: SampleRequest = ASK, *flags: str) -> Record:
    """One request; its record."""

    async def run() -> Record:
        async with running(delays) as endpoint:
            pool = ConnectionPool(endpoint.url)
            client = Client(pool, read_options(["--timeout", "20s", *flags]), started=perf_counter())
            record = await client.send(request, 0.0)
            pool.close()
            return record

    return asyncio.run(run())


@each_of("dialect", ["vllm", "openai", "llama", "native"])
def test_the_first_token_is_the_first_that_carries_content(dialect: str) -> None:
    """openai and llama send comments and a role at once; no answer can have content before its delay."""
    api = "native" if dialect == "native" else "openai"
    record = sent(Delays(first=0.05, between=0.01, dialect=dialect), ASK, "--api", api)
    assert record.error is None and record.finish == "length"
    assert record.ttft is not None and record.ttft >= 0.05
    assert record.e2el is not None and record.e2el >= 0.05 + 3 * 0.01
    assert record.tpot == pytest.approx((record.e2el - record.ttft) / 3)
    assert (record.events, len(record.gaps)) == (4, 3)
    assert sum(record.gaps) == pytest.approx(record.e2el - record.ttft)
    assert (record.prompt_tokens, record.output_tokens, record.tokens_by_events) == (7, 4, False)
    assert record.index == 3 and record.sent_bytes > 0
    assert 0 <= record.sent <= (record.first or 0) <= (record.last or 0) <= record.ended


def test_without_usage_events_are_counted() -> None:
    record = sent(Delays(first=0, between=0, usage=False), ASK, "--no-usage")
    assert (record.prompt_tokens, record.output_tokens, record.tokens_by_events) == (None, 4, True)


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    record = sent(Delays(first=0.02), ASK, "--no-stream")
    assert (record.error, record.ttft, record.tpot, record.gaps, record.output_tokens) == (None, None, None, [], 4)
    assert record.e2el is not None and record.e2el >= 0.02


@each_of(
    ("delays", "error"),
    [
        (Delays(status=429), "429 queue_full"),
        (Delays(status=503), "503 queue_full"),
        (Delays(first=0, fail_after=2), "event: engine_died"),
        (Delays(first=0, cut_after=2), "ConnectionResetError|connection closed"),
    ],
)
def test_every_failure_has_a_name(delays: Delays, error: str) -> None:
    record = sent(delays)
    assert record.error is not None and record.error in error.split("|")
    assert not record.answered and not record.cancelled


def test_a_stream_that_just_ends_is_no_answer() -> None:
    record = sent(
        replace(Delays(first=0, between=0), tokens=4, usage=False),
        SampleRequest(0, "text", "", "x", (), 1),
        "--extra",
        '{"max_tokens": -1}',
    )
    assert record.error == "empty answer"


def test_what_takes_too_long_is_a_timeout() -> None:
    record = sent(Delays(first=30), ASK, "--timeout", "50ms")
    assert (record.error, record.cancelled, record.first) == ("timeout", False, None)


def test_leaving_on_purpose_is_no_error_and_the_server_sees_it() -> None:
    delays = Delays(first=0.0, between=30)
    record = sent(delays, replace(ASK, cancel_after=0.5))
    assert record.cancelled and record.error is None and not record.answered
    assert record.first is not None, "what came before is kept"
    assert delays.connections == 1, "nothing is sent a second time"


def test_an_answer_that_is_over_before_it_would_be_left_counts() -> None:
    record = sent(Delays(first=0, between=0), replace(ASK, cancel_after=10.0))
    assert record.answered and not record.cancelled


@each_of(
    ("text", "correct"),
    [("Red circle.", True), (" red circle ", True), ("red square", False), (" Red CIRCLE.\n", True)],
)
def test_known_answers_are_checked(text: str, correct: bool) -> None:
    ask = replace(ASK, max_tokens=1, expect="red circle")
    record = sent(Delays(first=0, text=text), ask)
    assert record.correct is correct and record.answer == text


def test_what_failed_is_not_called_wrong() -> None:
    assert sent(Delays(status=500), replace(ASK, expect="x")).correct is None


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


def read(*events: bytes) -> tuple[Record, str | None]:
    """The record of a stream whose events come at 1, 2, ... seconds, and why it is no answer."""
    record = Record(index=0)
    reader = AnswerReader(record, 0.0)
    reader.head(200, {"content-type": "text/event-stream"})
    for at, event in enumerate(events, 1):
        reader.body(b"data: " + event + b"\n\n", float(at))
    return record, reader.end()


@each_of("name", DIALECTS)
def test_every_dialect_says_the_same(name: str) -> None:
    events = DIALECTS[name]
    contents = [at for at, event in enumerate(events, 1) if read(event)[0].events]
    finish = next(at for at, event in enumerate(events, 1) if read(event)[0].finish)
    record, error = read(*events, b"[DONE]")
    assert error is None and record.events == 2
    assert record.first == contents[0], "the first event that carries content, whatever came before"
    assert record.gaps == [1.0]
    assert record.finish == "stop"
    assert record.last == finish, "usage and [DONE] are no part of the answer"
    assert (record.prompt_tokens, record.output_tokens) == (5, 3)


@each_of("delta", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}])
def test_thoughts_and_calls_of_tools_are_content(delta: dict[str, Any]) -> None:
    assert read(chunk(delta))[0].events == 1


@each_of("delta", [ROLE, {"role": "assistant"}, {}, {"content": None}, {"tool_calls": []}])
def test_a_role_alone_is_no_content(delta: dict[str, Any]) -> None:
    assert read(chunk(delta))[0].first is None


@each_of(("text", "correct"), [("ab", True), ("b", False)])
def test_an_answer_in_one_piece_is_read_and_checked_too(text: str, correct: bool) -> None:
    body = {"choices": [{"message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}], "usage": USAGE}
    record = Record(index=0)
    reader = AnswerReader(record, 1.0, streamed=False)
    reader.head(200, {})
    for part in (json.dumps(body)[:9], json.dumps(body)[9:]):
        reader.body(part.encode(), 3.0)
    assert reader.end() is None
    reader.check(text)
    assert (record.answer, record.correct, record.finish, record.last, record.first) == (
        "ab",
        correct,
        "stop",
        2.0,
        None,
    )


@each_of(
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
    assert read(json.dumps({"error": error}).encode())[1] == f"event: {code}"


@each_of("data", [b"", b"{", b"<html>", b"[]", b'{"choices": 3}', b'{"choices":[{"delta":{"content":[1]}}]}'])
def test_what_is_none_of_it_is_said(data: bytes) -> None:
    error = read(data)[1]
    assert error is not None and error.startswith("unreadable answer")


def test_a_stream_that_breaks_off_is_no_answer() -> None:
    assert read(chunk({"content": "a"}))[1] == "cut off"
    assert read(chunk({"content": "a"}), b"[DONE]")[1] is None


def test_seconds_of_stages_come_with_usage() -> None:
    record, _ = read(json.dumps({"choices": [], "usage": {**USAGE, "timings": {"queue": 0.25}}}).encode())
    assert record.stages == {"queue": 0.25}


STREAMS = {
    "plain": (b'data: {"a":1}\n\ndata: [DONE]\n\n', [b'{"a":1}', b"[DONE]"]),
    "without a blank": (b'data:{"a":1}\n\n', [b'{"a":1}']),
    "carriage returns": (b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', [b'{"a":1}', b"[DONE]"]),
    "carriage returns alone": (b"data: x\r\rdata: y\r\r", [b"x", b"y"]),
    "comments": (b": keep-alive\n\ndata: x\n\n: OPENROUTER PROCESSING\n\ndata: y\n\n", [b"x", b"y"]),
    "a comment inside an event": (b"data: x\n: hm\ndata: y\n\n", [b"x\ny"]),
    "names, ids and retries": (b"event: message\nid: 7\nretry: 3000\ndata: x\n\n", [b"x"]),
    "several lines": (b"data: x\ndata:  y\n\n", [b"x\n y"]),
    "several lines with carriage returns": (b"data: x\r\ndata: y\r\n\r\n", [b"x\ny"]),
    "an empty event": (b"\n\n\ndata: x\n\n", [b"x"]),
    "letters of several bytes": ("data: 港口\n\n".encode(), ["港口".encode()]),
}


@each_of("size", [1, 2, 3, 7, 1000])
@each_of("name", STREAMS)
def test_events_are_the_same_however_their_bytes_come(name: str, size: int) -> None:
    stream, expected = STREAMS[name]
    events = Events()
    found = [data for start in range(0, len(stream), size) for data in events.feed(stream[start : start + size])]
    assert found == expected
    assert events.rest() is None


def test_a_last_event_without_its_blank_line_is_not_lost() -> None:
    events = Events()
    assert events.feed(b"data: x\n\ndata: y") == [b"x"]
    assert events.rest() == b"y"
    assert events.rest() is None
