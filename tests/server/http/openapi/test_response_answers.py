"""What the writer of responses makes is what the document tells: whole, in events, and where it fails."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from server.http.errors import body_of
from server.http.openapi.response_answers import ResponseAnswer, ResponsesEvent
from server.requests.refusal import internal, invalid_request
from tests.server.http.answers import ACCEPTED, answered
from tests.server.http.routes.test_responses_events import ANSWERS, logprobs, parsed, serializer, whole_of
from tests.server.tables import each_of
from tokenization.text.bpe import BPETokenizer


@each_of("fields", [{}, logprobs()])
@each_of("name", ANSWERS)
def test_responses_are_answered_as_the_document_tells(tokenizer: BPETokenizer, name: str, fields: Any) -> None:
    deltas = ANSWERS[name]
    ResponseAnswer.model_validate(answered(serializer(tokenizer, **fields), ACCEPTED, [whole_of(deltas)]))
    writer = serializer(tokenizer, **fields)
    events = parsed(b"".join(writer.event(ACCEPTED, delta) for delta in deltas))
    for event in events:
        ResponsesEvent.model_validate(event)
    assert len(events) > 4


def test_a_stream_that_fails_is_told(tokenizer: BPETokenizer) -> None:
    for error in (internal("why"), invalid_request("why", "input")):
        events = parsed(serializer(tokenizer).failed(body_of(error, "r1")))
        for event in events:
            ResponsesEvent.model_validate(event)
        assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
        with pytest.raises(ValidationError):
            ResponsesEvent.model_validate_json(json.dumps({**events[-1], "more": 1}))
