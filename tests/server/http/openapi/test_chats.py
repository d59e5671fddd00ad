"""Examples of chats are bodies that their readers take, and that the types of the document take as well."""

import json
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from server.http.openapi.chats import COMPLETIONS, NATIVE, ChatCompletionRequest
from server.http.routes.chat_completions import read_openai
from server.http.routes.native import read_native
from tests.server.tables import each_of


@each_of(("route", "read"), [(NATIVE, read_native), (COMPLETIONS, read_openai)])
def test_examples_are_read(route: Any, read: Any) -> None:
    for body in route.examples.values():
        assert read(json.dumps(body).encode(), "r1").id == "r1"
        TypeAdapter(route.body).validate_json(json.dumps(body))


@each_of("field", [{"temperature": -1}, {"messages": []}, {"n": 0}, {"tool_choice": "maybe"}])
def test_bounds_are_those_of_the_types_that_parse(field: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ChatCompletionRequest.model_validate({"messages": [{"role": "user", "content": "Hi"}], **field})
