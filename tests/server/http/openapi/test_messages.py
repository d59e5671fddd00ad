"""Answers, events and errors of Anthropic's form are what the document tells."""

from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError
from starlette.types import Scope

from server.http.errors import STATUS, body_of, in_dialect
from server.http.openapi import messages as told
from server.http.openapi.failures import ANTHROPIC_ERRORS, FAILURES
from server.http.routes.messages import CHOICES, message_usage
from server.request_context import RequestContext
from server.requests.answer import Delta
from server.requests.refusal import Refusal, RefusalKind
from server.requests.sampling import SamplingRequest
from tests.server.http.answers import ACCEPTED, DELTAS, TOKENS, answered, collected
from tests.server.http.openapi.document import document
from tests.server.http.routes.test_messages import events, serializer
from tests.tables import each_of
from tokenization.chat import blocks
from tokenization.text.call_parser import CallPiece

CALL = CallPiece(index=0, id="call_1", name="weather", arguments='{"city": "Rome"}')
CALLED = [Delta(text="I look.", tokens=TOKENS[:1]), Delta(text="", tokens=(), calls=(CALL,), finish="tool_calls")]


@each_of("deltas", [DELTAS, CALLED])
def test_messages_are_answered_as_the_document_tells(deltas: list[Delta]) -> None:
    whole = answered(serializer(), ACCEPTED, collected(deltas))
    told.MessageAnswer.model_validate(whole)
    with pytest.raises(ValidationError):
        told.MessageAnswer.model_validate({**whole, "more": 1})
    found = events(deltas)
    for event in found:
        told.MessageEvent.model_validate(event)
    assert len(found) > 5
    told.MessageUsage.model_validate(message_usage(ACCEPTED, 1, RequestContext("r1")))


@each_of("kind", STATUS)
def test_an_error_has_anthropics_form(kind: RefusalKind) -> None:
    status = STATUS[kind]
    code = next(iter(FAILURES[status][1])) or None
    scope: Scope = {"path": "/v1/messages", "state": {"context": RequestContext("r1")}}
    body = in_dialect(body_of(Refusal(kind, "why", code=code), "r1"), status, scope)
    ANTHROPIC_ERRORS[status].model_validate(body)


def test_errors_of_messages_are_told_in_that_form() -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        told = document()["paths"][path]["post"]["responses"]["429"]
        assert told["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/AnthropicError429"}


def types(*kinds: type[BaseModel]) -> set[Any]:
    return {get_args(kind.model_fields["type"].annotation)[0] for kind in kinds}


def test_blocks_and_choices() -> None:
    assert types(told.TextBlock, told.PictureBlock, told.ResultBlock) == {*blocks._BLOCKS["user"]}
    assert types(told.TextBlock, told.ThinkingBlock, told.CallBlock) == {*blocks._BLOCKS["assistant"]}
    assert {*get_args(told.DataSource.model_fields["media_type"].annotation)} == {*blocks.PICTURES}
    assert {*get_args(told.CustomToolChoice.model_fields["type"].annotation)} == {*CHOICES, "tool"}


@each_of("name", ["temperature", "top_p", "top_k"])
def test_parameters_have_the_bounds_of_the_type_that_parses(name: str) -> None:
    bounds, ours = (
        {key: value for key, value in model.model_json_schema()["properties"][name].items() if key != "description"}
        for model in (SamplingRequest, told.CreateMessage)
    )
    assert bounds == ours
