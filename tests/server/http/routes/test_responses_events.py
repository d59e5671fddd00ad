"""The answer of POST /v1/responses: openai-python's own types take every event, and the last says what all said."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from server.http.errors import body_of
from server.http.responses import EventStream, written
from server.http.routes.responses_body import read_responses
from server.http.routes.responses_events import ResponsesSerializer
from server.request_context import RequestContext
from server.requests.answer import Delta, Emit
from server.requests.refusal import internal, invalid_request, overloaded
from tests.server.doubles import card
from tests.server.http.answers import ACCEPTED, TOKENS, answered
from tests.server.http.test_responses import Client
from tests.server.tables import each_of
from tokenization.text.bpe import BPETokenizer
from tokenization.text.call_parser import CallPiece, joined

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
TIMES = ("created_at", "completed_at")
WORDS = [
    Delta(text="a ", tokens=TOKENS[:1]),
    Delta(text="", tokens=TOKENS[1:2]),
    Delta(text="你", tokens=TOKENS[2:], finish="stop"),
]
CUT = [Delta(text="a", tokens=TOKENS[:2]), Delta(text="", tokens=TOKENS[2:], finish="length")]
NOTHING = [Delta(text="", tokens=TOKENS[:1], finish="stop")]
FIRST, SECOND = CallPiece(index=0, id="call_1", name="weather"), CallPiece(index=1, id="call_2", name="weather")
CALLS = [
    Delta(text="", tokens=TOKENS[:1]),
    Delta(text="", tokens=TOKENS[1:2], calls=(FIRST, CallPiece(index=0, arguments='{"city":'))),
    Delta(text="", tokens=(), calls=(CallPiece(index=0, arguments="3}"), SECOND)),
    Delta(text="", tokens=TOKENS[2:], calls=(CallPiece(index=1, arguments="{}"),), finish="tool_calls"),
]
BOTH = [Delta(text="Let me look.", tokens=TOKENS[:1]), *CALLS[1:]]
CUT_CALL = [*BOTH[:2], Delta(text="", tokens=TOKENS[2:], finish="length")]
SOLITARY = [Delta(text="Hi", tokens=TOKENS, calls=(FIRST, CallPiece(index=0, arguments="{}")), finish="tool_calls")]
ANSWERS = {
    "words": WORDS, "cut": CUT, "nothing": NOTHING, "calls": CALLS, "both": BOTH, "cut call": CUT_CALL,
    "at once": SOLITARY,
}  # fmt: skip


def serializer(tokenizer: BPETokenizer, **fields: Any) -> ResponsesSerializer:
    body = {"input": "Hi", "tools": [WEATHER], "metadata": {"a": "b"}, "stream": True, **fields}
    return ResponsesSerializer(read_responses(json.dumps(body).encode(), "r1"), card(tokenizer))


def logprobs(**fields: Any) -> dict[str, Any]:
    return {"include": ["message.output_text.logprobs"], "top_logprobs": 2, **fields}


def whole_of(deltas: Sequence[Delta]) -> Delta:
    return Delta(
        text="".join(delta.text for delta in deltas),
        tokens=tuple(token for delta in deltas for token in delta.tokens),
        calls=joined([piece for delta in deltas for piece in delta.calls]),
        finish=deltas[-1].finish,
    )


def parsed(raw: bytes) -> list[Any]:
    """The JSON of each event, whose name is its type."""
    found = []
    for event in raw.decode().removesuffix("\n\n").split("\n\n"):
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(writer: ResponsesSerializer, deltas: Sequence[Delta]) -> list[Any]:
    """What a stream of these deltas says."""
    events = parsed(b"".join(writer.event(ACCEPTED, delta) for delta in deltas))
    n_tokens = sum(len(delta.tokens) for delta in deltas)
    return [*events, json.loads(b"".join(asyncio.run(written(writer.closing(ACCEPTED, n_tokens)))))]


def untimed(response: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in response.items() if key not in TIMES}


@each_of("fields", [{}, logprobs()], ids=["plain", "logprobs"])
@each_of("name", ANSWERS)
def test_a_stream_says_in_pieces_what_a_plain_answer_says(
    tokenizer: BPETokenizer, name: str, fields: dict[str, Any]
) -> None:
    """The SDK's own types take each event, and its own accumulator comes to the same."""
    deltas = ANSWERS[name]
    events = streamed(serializer(tokenizer, **fields), deltas)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = answered(serializer(tokenizer, **fields), ACCEPTED, [whole_of(deltas)])
    Response.model_validate(whole)
    assert untimed(events[-1]["response"]) == untimed(whole)
    state = ResponseStreamState[Any](input_tools=[], text_format=omit)
    told = [one for event in events for one in state.handle_event(EVENT.validate_python(event))]
    output = [item.to_dict() for item in told[-1].response.output]  # type: ignore[union-attr]
    assert [item["type"] for item in output] == [item["type"] for item in whole["output"]]
    pieces: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            pieces[event["output_index"]] = pieces.get(event["output_index"], "") + event["delta"]
    said = [item["content"][0]["text"] if "content" in item else item["arguments"] for item in whole["output"]]
    assert [pieces.get(i, "") for i in range(len(said))] == said


def kinds(events: Sequence[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_the_events_of_a_message_stand_in_the_published_order(tokenizer: BPETokenizer) -> None:
    events = streamed(serializer(tokenizer), WORDS)
    assert kinds(events) == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert {event["item_id"] for event in events if "item_id" in event} == {"msg_r1_0"}
    assert [event["response"]["status"] for event in events if "response" in event] == [
        "in_progress", "in_progress", "completed",
    ]  # fmt: skip


def test_the_events_of_calls_stand_in_the_published_order(tokenizer: BPETokenizer) -> None:
    message = [
        "output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "output_item.done",
    ]  # fmt: skip
    arguments = "function_call_arguments"
    events = streamed(serializer(tokenizer), BOTH)
    assert kinds(events) == [
        "created", "in_progress", *message,
        "output_item.added", f"{arguments}.delta", f"{arguments}.delta", f"{arguments}.done", "output_item.done",
        "output_item.added", f"{arguments}.delta", f"{arguments}.done", "output_item.done", "completed",
    ]  # fmt: skip
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [(item["id"], item["status"], item.get("call_id"), item.get("arguments")) for item in done] == [
        ("msg_r1_0", "completed", None, None),
        ("fc_r1_1", "completed", "call_1", '{"city":3}'),
        ("fc_r1_2", "completed", "call_2", "{}"),
    ]


def test_an_answer_that_is_cut_is_incomplete(tokenizer: BPETokenizer) -> None:
    for deltas, statuses in ((CUT, ["incomplete"]), (CUT_CALL, ["completed", "incomplete"])):
        last = streamed(serializer(tokenizer), deltas)[-1]
        assert last["type"] == "response.incomplete"
        response = last["response"]
        assert response["status"] == "incomplete" and "completed_at" not in response
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [item["status"] for item in response["output"]] == statuses


def test_log_probabilities_stand_in_the_deltas_and_in_the_last_event(tokenizer: BPETokenizer) -> None:
    events = streamed(serializer(tokenizer, **logprobs()), WORDS)
    brought = [entry for event in events if event["type"].endswith("text.delta") for entry in event["logprobs"]]
    last = events[-1]["response"]["output"][0]["content"][0]["logprobs"]
    assert brought == last and [entry["logprob"] for entry in last] == [-0.5, -2.0, -3.0]
    assert len(last[0]["top_logprobs"]) == 2
    plain = streamed(serializer(tokenizer, top_logprobs=2), WORDS)
    assert not any(event.get("logprobs") for event in plain)


def test_an_answer_repeats_what_was_asked(tokenizer: BPETokenizer) -> None:
    text = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}, "strict": False}}
    said = {
        "instructions": "Be brief.", "max_output_tokens": 9, "temperature": 0.5, "top_p": 0.25,
        "tool_choice": "required", "parallel_tool_calls": False, "text": text, "user": "me",
        "metadata": {"c": "d"}, "store": True,
    }  # fmt: skip
    whole = answered(serializer(tokenizer, **said), ACCEPTED, [whole_of(WORDS)])
    Response.model_validate(whole)
    assert {key: whole[key] for key in said} == {**said, "store": False}
    assert whole["id"] == "resp_r1" and whole["model"] == "tiny" and whole["object"] == "response"
    assert whole["tools"] == [{**WEATHER, "description": None}]
    silent = answered(serializer(tokenizer), ACCEPTED, [whole_of(WORDS)])
    assert (silent["temperature"], silent["top_p"], silent["tool_choice"]) == (0.0, 1.0, "auto")


def test_usage_counts_as_other_routes_do(tokenizer: BPETokenizer) -> None:
    whole = answered(serializer(tokenizer), ACCEPTED, [whole_of(WORDS)])
    assert whole["usage"] == {
        "input_tokens": 10, "output_tokens": 3, "total_tokens": 13, "output_tokens_details": {"reasoning_tokens": 0},
        "input_tokens_details": {"image_tokens": 4, "cached_tokens": 0, "cache_write_tokens": 0},
    }  # fmt: skip


@each_of("begun", [False, True])
@each_of(
    ("error", "code"),
    [
        (internal("the server failed"), "server_error"),
        (invalid_request("no", "top_p", "why"), "invalid_prompt"),
        (overloaded("later", "memory_full"), "rate_limit_exceeded"),
    ],
)
def test_an_error_ends_a_stream_by_two_events(tokenizer: BPETokenizer, begun: bool, error: Any, code: str) -> None:
    writer = serializer(tokenizer)
    events = parsed(writer.event(ACCEPTED, WORDS[0])) if begun else []
    events += parsed(writer.failed(body_of(error, "r1")))
    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert kinds(events)[:2] == ["created", "in_progress"] and kinds(events)[-2:] == ["error", "failed"]
    told, failed = events[-2:]
    assert told["error"] == body_of(error, "r1")["error"] and told["param"] == error.param
    assert failed["response"]["status"] == "failed" and failed["response"]["error"]["code"] == code


def test_a_stream_ends_with_its_last_event(tokenizer: BPETokenizer) -> None:
    """As OpenAI's does: without [DONE], also after an error."""

    async def told(error: Exception | None) -> Client:
        async def run(emit: Emit) -> None:
            for delta in WORDS[: None if error is None else 1]:
                await emit(ACCEPTED, delta)
            if error is not None:
                raise error

        client, writer = Client(), serializer(tokenizer)
        scope = {"type": "http", "path": "/v1/responses", "state": {"context": RequestContext("r1")}}
        await EventStream(run, writer, b"", writer.failed)(scope, client.receive, client.send)
        return client

    for error, last in ((None, "completed"), (RuntimeError("internal detail"), "failed")):
        client = asyncio.run(told(error))
        assert client.sent[-1]["more_body"] is False and "internal detail" not in client.body
        assert parsed(client.body.encode())[-1]["type"] == f"response.{last}"
