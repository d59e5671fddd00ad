"""What the serializers write is what the document tells, whole and in pieces."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from server.http.openapi.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    CountedTokens,
    NativeAnswer,
    NativeEvent,
)
from server.http.routes.native import NativeSerializer
from server.http.routes.tokenize import token_counts
from server.request_context import RequestContext
from tests.server.doubles import prepared
from tests.server.http.answers import ACCEPTED, DELTAS, SEVERAL, answered, collected, completion, parse_all
from tests.server.tables import each_of
from tokenization.text.bpe import BPETokenizer


@each_of("logprobs", [False, True])
@each_of("deltas", [DELTAS, SEVERAL])
def test_chats_are_answered_as_the_document_tells(tokenizer: BPETokenizer, logprobs: bool, deltas: Any) -> None:
    n = 1 if deltas is DELTAS else 2
    native = NativeSerializer("chat-1", tokenizer, RequestContext(), logprobs=logprobs, n=n)
    openai = completion(tokenizer, n=n, logprobs=logprobs, include_usage=True, token_ids=True)
    writers: list[tuple[Any, type[BaseModel], type[BaseModel]]] = [
        (native, NativeAnswer, NativeEvent), (openai, ChatCompletion, ChatCompletionChunk)
    ]  # fmt: skip
    for writer, whole, event in writers:
        whole.model_validate(answered(writer, ACCEPTED, collected(deltas)))
        found = parse_all([*(writer.event(ACCEPTED, delta) for delta in deltas), writer.closing(ACCEPTED, 4)])
        for one in found:
            event.model_validate(one)
        assert len(found) > 2


def test_counts_are_what_the_document_tells() -> None:
    counted = token_counts(prepared("chat-1", 5, media=1), 100)
    CountedTokens.model_validate(counted)
    with pytest.raises(ValidationError):
        CountedTokens.model_validate({**counted, "more": 1})


def test_what_may_be_missing_is_not_null() -> None:
    schema = CountedTokens.model_json_schema()["$defs"]["CountedMedium"]
    assert "reduced" not in schema["required"] and schema["additionalProperties"] is False
    assert schema["properties"]["reduced"].get("anyOf") is None and "default" not in schema["properties"]["reduced"]
